#include "media/targets.h"

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

ImageTarget::ImageTarget(RgbImage& image) : image_(image) {
  linear_offsets(image.width_px, offsets_);
  stride_ = offsets_.size() * kGroupPixels;
}

std::uint8_t* ImageTarget::row(int y, int c) { return plane_row(rows_, stride_, y, c); }

void ImageTarget::finish(int y) {
  const auto width = static_cast<std::size_t>(image_.width_px);
  std::uint8_t* to = image_.pixels.data() + static_cast<std::size_t>(y) * width * 3;
  for (int c = 0; c < 3; ++c) {
    const std::uint8_t* from = row(y, c);
    for (std::size_t x = 0; x < width; ++x) to[3 * x + static_cast<std::size_t>(c)] = from[x];
  }
}

}  // namespace stoker
