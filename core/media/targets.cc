#include "media/targets.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace stoker {
namespace {

std::uint8_t* plane_row(Scratch& rows, std::size_t stride, int y, int c) {
  return rows.get<std::uint8_t>(12 * stride) +
         (static_cast<std::size_t>(y % 4) * 3 + static_cast<std::size_t>(c)) * stride;
}

void linear_offsets(int width, std::vector<std::uint32_t>& offsets) {
  offsets.resize(static_cast<std::size_t>((width + kGroupPixels - 1) / kGroupPixels));
  for (std::size_t g = 0; g < offsets.size(); ++g) offsets[g] = static_cast<std::uint32_t>(g * kGroupPixels);
}

}  // namespace

void PatchTarget::start(const PatchGeometry& geometry, std::uint8_t* patches) {
  geometry_ = geometry;
  patches_ = patches;
  patch_bytes_ = static_cast<std::size_t>(3 * geometry.patch * geometry.patch);
  is_direct_ = geometry.patch == kGroupPixels;
  has_lines_ = is_direct_ && reinterpret_cast<std::uintptr_t>(patches) % 64 == 0;
  const int m = geometry.merge;
  column_offsets_.resize(static_cast<std::size_t>(geometry.width_px / geometry.patch));
  for (std::size_t px = 0; px < column_offsets_.size(); ++px) {
    const int column = static_cast<int>(px);
    column_offsets_[px] =
        static_cast<std::uint32_t>(static_cast<std::size_t>(column / m * m * m + column % m) * patch_bytes_);
  }
  if (is_direct_) {
    offsets_ = column_offsets_;
  } else {
    linear_offsets(geometry.width_px, offsets_);
    stride_ = offsets_.size() * kGroupPixels;
  }
}

/// Where row `y` begins in the first patch of its row of patches.
std::uint8_t* PatchTarget::place(int y, int c) const {
  const auto p = static_cast<std::size_t>(geometry_.patch);
  const int m = geometry_.merge;
  const int py = y / geometry_.patch;
  const int patches_across = geometry_.width_px / geometry_.patch;
  const std::size_t patch = static_cast<std::size_t>(py / m * m) * static_cast<std::size_t>(patches_across) +
                            static_cast<std::size_t>(py % m * m);
  return patches_ + patch * patch_bytes_ +
         (static_cast<std::size_t>(c) * p + static_cast<std::size_t>(y % geometry_.patch)) * p;
}

std::uint8_t* PatchTarget::row(int y, int c) { return is_direct_ ? place(y, c) : plane_row(rows_, stride_, y, c); }

void PatchTarget::finish(int y) {
  if (is_direct_) return;
  const auto p = static_cast<std::size_t>(geometry_.patch);
  for (int c = 0; c < 3; ++c) {
    const std::uint8_t* from = plane_row(rows_, stride_, y, c);
    std::uint8_t* to = place(y, c);
    for (std::size_t px = 0; px < column_offsets_.size(); ++px) std::memcpy(to + column_offsets_[px], from + px * p, p);
  }
}

void TurnedPatchTarget::start(const PatchGeometry& geometry, std::uint8_t* patches) {
  geometry_ = geometry;
  patches_ = patches;
  patch_bytes_ = static_cast<std::size_t>(3 * geometry.patch * geometry.patch);
  // Rows come in fours, so a column's last ones may bring up to three of its neighbour.
  n_rows_ = static_cast<int>(round_up(static_cast<std::size_t>(geometry.patch) + 3, 4));
  linear_offsets(geometry.height_px, offsets_);
  stride_ = offsets_.size() * kGroupPixels;
  n_finished_.assign(static_cast<std::size_t>(geometry.width_px / geometry.patch), 0);
  const auto m = static_cast<std::size_t>(geometry.merge);
  const auto across = static_cast<std::size_t>(geometry.width_px / geometry.patch);
  row_offsets_.resize(static_cast<std::size_t>(geometry.height_px / geometry.patch));
  for (std::size_t py = 0; py < row_offsets_.size(); ++py) {
    row_offsets_[py] = static_cast<std::uint32_t>((py / m * m * across + py % m * m) * patch_bytes_);
  }
}

std::uint8_t* TurnedPatchTarget::row(int y, int c) {
  return rows_.get<std::uint8_t>(static_cast<std::size_t>(n_rows_) * 3 * stride_) +
         (static_cast<std::size_t>(y % n_rows_) * 3 + static_cast<std::size_t>(c)) * stride_;
}

void TurnedPatchTarget::finish(int y) {
  const int px = y / geometry_.patch;
  if (++n_finished_[static_cast<std::size_t>(px)] == geometry_.patch) write_column(px);
}

void TurnedPatchTarget::write_column(int px) {
  const int m = geometry_.merge;
  std::uint8_t* column = patches_ + static_cast<std::size_t>(px / m * m * m + px % m) * patch_bytes_;
  for (int c = 0; c < 3; ++c) {
    if (geometry_.patch != kGroupPixels) {
      write_other_sizes(px, c);
      continue;
    }
    std::array<const std::uint8_t*, kGroupPixels> rows{};
    for (int i = 0; i < kGroupPixels; ++i) rows[static_cast<std::size_t>(i)] = row(px * kGroupPixels + i, c);
    std::uint8_t* to = column + c * kGroupPixels * kGroupPixels;
    transpose_rows(rows, static_cast<int>(row_offsets_.size()), row_offsets_.data(),
                   reinterpret_cast<std::uintptr_t>(patches_) % 64 == 0, to);
  }
}

/// Turns blocks of 16, then copies what a patch has of each row.
void TurnedPatchTarget::write_other_sizes(int px, int c) {
  const int p = geometry_.patch;
  const int m = geometry_.merge;
  const auto n_blocks = static_cast<int>(offsets_.size());
  auto* turned = turned_.get<std::uint8_t>(offsets_.size() * kGroupPixels * kGroupPixels);
  turned_offsets_.resize(offsets_.size());
  for (std::size_t g = 0; g < offsets_.size(); ++g) turned_offsets_[g] = offsets_[g] * kGroupPixels;
  std::uint8_t* column = patches_ + static_cast<std::size_t>(px / m * m * m + px % m) * patch_bytes_;
  for (int x = 0; x < p; x += kGroupPixels) {
    const int n = std::min(kGroupPixels, p - x);
    std::array<const std::uint8_t*, kGroupPixels> rows{};
    for (int i = 0; i < kGroupPixels; ++i) rows[static_cast<std::size_t>(i)] = row(px * p + x + std::min(i, n - 1), c);
    transpose_rows(rows, n_blocks, turned_offsets_.data(), false, turned);
    for (int y = 0; y < geometry_.height_px; ++y) {
      std::memcpy(column + row_offsets_[static_cast<std::size_t>(y / p)] + (c * p + y % p) * p + x,
                  turned + static_cast<std::size_t>(y) * kGroupPixels, static_cast<std::size_t>(n));
    }
  }
}

ImageTarget::ImageTarget(RgbImage& image, bool is_turned) : image_(image), is_turned_(is_turned) {
  linear_offsets(is_turned ? image.height_px : image.width_px, offsets_);
  stride_ = offsets_.size() * kGroupPixels;
}

std::uint8_t* ImageTarget::row(int y, int c) { return plane_row(rows_, stride_, y, c); }

void ImageTarget::finish(int y) {
  const auto width = static_cast<std::size_t>(image_.width_px);
  const auto at = static_cast<std::size_t>(y);
  const std::size_t n = is_turned_ ? static_cast<std::size_t>(image_.height_px) : width;
  const std::size_t step = is_turned_ ? width * 3 : 3;
  std::uint8_t* to = image_.pixels.data() + (is_turned_ ? at * 3 : at * width * 3);
  for (int c = 0; c < 3; ++c) {
    const std::uint8_t* from = row(y, c);
    for (std::size_t i = 0; i < n; ++i) to[i * step + static_cast<std::size_t>(c)] = from[i];
  }
}

}  // namespace stoker
