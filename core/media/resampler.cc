#include "media/resampler.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stoker {
namespace {

constexpr int kBlockOutputs = 4;
constexpr int kWindowBytes = 16;
constexpr int kStepRows = 4;
constexpr std::size_t kTableBytesPerPair = 128;  // of a group: 64 of shuffles, 64 of weights

std::int32_t as_word(std::int16_t low, std::int16_t high) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint16_t>(high)) << 16 |
                                   static_cast<std::uint16_t>(low));
}

}  // namespace

void Resampler::start(int source_height, int source_width, int height, int width, Mirror mirror, RowTarget& target) {
  source_height_ = source_height;
  source_width_ = source_width;
  height_ = height;
  width_ = width;
  n_groups_ = (width + kGroupPixels - 1) / kGroupPixels;
  mirror_ = mirror;
  target_ = &target;
  n_steps_ = (height + kStepRows - 1) / kStepRows;
  next_step_ = 0;
  n_rows_ = 0;
  make_taps(source_width, width, mirror.is_left_right, across_);
  make_taps(source_height, height, mirror.is_upside_down, down_);
  make_horizontal();
  make_vertical();
}

void Resampler::make_horizontal() {
  horizontal_.n_groups = n_groups_;
  horizontal_.precision = across_.precision;
  const int n_pairs = (across_.max_count + 1) / 2;
  horizontal_.n_pairs = n_pairs;
  int widest = 0;  // distance between the first taps of a block's outputs
  for (int begin = 0; begin < width_; begin += kBlockOutputs) {
    const auto [lo, hi] = std::minmax_element(across_.first.begin() + begin,
                                              across_.first.begin() + std::min(begin + kBlockOutputs, width_));
    widest = std::max(widest, *hi - *lo);
  }
  if (widest + 2 * n_pairs <= kWindowBytes) return make_windows(n_pairs, true);
  if (widest + 2 <= kWindowBytes) return make_windows(n_pairs, false);
  make_dots();
}

void Resampler::make_windows(int n_pairs, bool is_one_window) {
  horizontal_.form = is_one_window ? HorizontalView::Form::kOneWindow : HorizontalView::Form::kSlidingWindow;
  const std::size_t n_bytes =
      static_cast<std::size_t>(n_groups_) * static_cast<std::size_t>(n_pairs) * kTableBytesPerPair;
  auto* table = table_memory_.get<std::uint8_t>(n_bytes);
  auto* base = base_memory_.get<std::int32_t>(static_cast<std::size_t>(n_groups_) * kBlockOutputs);
  for (int block = 0; block < n_groups_ * 4; ++block) {
    const int begin = block * kBlockOutputs;
    const int end = std::min(begin + kBlockOutputs, width_);
    const int lo = begin < end ? *std::min_element(across_.first.begin() + begin, across_.first.begin() + end) : 0;
    base[block] = lo;
    for (int t = 0; t < n_pairs; ++t) {
      std::uint8_t* at =
          table +
          (static_cast<std::size_t>(block / 4) * static_cast<std::size_t>(n_pairs) + static_cast<std::size_t>(t)) *
              kTableBytesPerPair +
          static_cast<std::size_t>(block % 4) * kWindowBytes;
      for (int i = 0; i < kBlockOutputs; ++i) {
        std::array<std::uint8_t, 4> shuffle = {0x80, 0x80, 0x80, 0x80};
        std::array<std::int16_t, 2> weights = {0, 0};
        const int x = begin + i;
        for (int k = 0; k < 2 && x < end; ++k) {
          const int tap = 2 * t + k;
          if (tap >= across_.count[static_cast<std::size_t>(x)]) break;
          const int offset = across_.first[static_cast<std::size_t>(x)] - lo + k + (is_one_window ? 2 * t : 0);
          shuffle[static_cast<std::size_t>(2 * k)] = static_cast<std::uint8_t>(offset);
          weights[static_cast<std::size_t>(k)] = across_.weights_of(x)[tap];
        }
        std::memcpy(at + i * 4, shuffle.data(), 4);
        std::memcpy(at + kTableBytesPerPair / 2 + i * 4, weights.data(), 4);
      }
    }
  }
  horizontal_.table = table;
  horizontal_.base = base;
}

void Resampler::make_dots() {
  horizontal_.form = HorizontalView::Form::kDot;
  const int n_taps = static_cast<int>(round_up(static_cast<std::size_t>(across_.max_count), 16));
  horizontal_.n_pairs = n_taps / 2;
  const auto n_outputs = static_cast<std::size_t>(n_groups_) * kGroupPixels;
  auto* weights = table_memory_.get<std::int16_t>(n_outputs * static_cast<std::size_t>(n_taps));
  auto* base = base_memory_.get<std::int32_t>(n_outputs);
  std::fill_n(weights, n_outputs * static_cast<std::size_t>(n_taps), std::int16_t{0});
  std::fill_n(base, n_outputs, 0);
  for (int x = 0; x < width_; ++x) {
    // Moved left at the right edge, so that whole vectors of taps stay within the row's slack.
    const int first = across_.first[static_cast<std::size_t>(x)];
    const int from = std::max(0, std::min(first, source_width_ - n_taps));
    base[x] = from;
    std::copy_n(across_.weights_of(x), across_.count[static_cast<std::size_t>(x)],
                weights + static_cast<std::ptrdiff_t>(x) * n_taps + (first - from));
  }
  horizontal_.table = reinterpret_cast<const std::uint8_t*>(weights);
  horizontal_.base = base;
}

/// The output rows of a step, in the order in which their source rows arrive.
Resampler::Rows Resampler::rows_of(int step) const {
  const int near = kStepRows * step;
  const int far = std::min(near + kStepRows, height_);
  return mirror_.is_upside_down ? Rows{height_ - far, height_ - near} : Rows{near, far};
}

void Resampler::make_vertical() {
  const auto rows = static_cast<std::size_t>(height_);
  first_pair_.resize(rows);
  n_pairs_.resize(rows);
  vertical_stride_ = down_.max_count / 2 + 1;
  pair_weights_ = weight_memory_.get<std::int32_t>(rows * static_cast<std::size_t>(vertical_stride_));
  for (std::size_t y = 0; y < rows; ++y) {
    const int first = down_.first[y];
    const int end = first + down_.count[y];
    const std::int16_t* taps = down_.weights_of(static_cast<int>(y));
    first_pair_[y] = first / 2;
    n_pairs_[y] = (end - 1) / 2 - first / 2 + 1;
    for (int t = 0; t < vertical_stride_; ++t) {
      const int row = (first_pair_[y] + t) * 2;
      const auto weight = [&](int r) { return r >= first && r < end ? taps[r - first] : std::int16_t{0}; };
      pair_weights_[y * static_cast<std::size_t>(vertical_stride_) + static_cast<std::size_t>(t)] =
          as_word(weight(row), weight(row + 1));
    }
  }
  // The ring holds what lies between the oldest row that a step still reads and the newest that had to arrive before
  // it.
  int newest = 0;
  int pairs = 1;
  for (int step = 0; step < n_steps_; ++step) {
    int oldest = source_height_ / 2;
    const auto [begin, end] = rows_of(step);
    for (auto y = static_cast<std::size_t>(begin); y < static_cast<std::size_t>(end); ++y) {
      newest = std::max(newest, first_pair_[y] + n_pairs_[y] - 1);
      oldest = std::min(oldest, first_pair_[y]);
    }
    pairs = std::max(pairs, newest - oldest + 1);
  }
  ring_pairs_ = pairs;
  ring_stride_ = static_cast<std::size_t>(n_groups_) * kGroupPixels * 2;
  ring_ = ring_memory_.get<std::int16_t>(static_cast<std::size_t>(ring_pairs_) * 3 * ring_stride_);
  for (auto& pointers : pair_pointers_) pointers.resize(static_cast<std::size_t>(vertical_stride_));
}

Status Resampler::take(int first, const RowPair& pair) {
  if (across_.is_identity && source_height_ == height_) {
    copy_rows(first, pair);
    return {};
  }
  const int at = first / 2;
  const std::array<std::int16_t*, 3> to = {ring_row(at, 0), ring_row(at, 1), ring_row(at, 2)};
  if (across_.is_identity) {
    zip_pair(pair, n_groups_, to);
  } else {
    horizontal_pair(horizontal_, pair, to);
  }
  n_rows_ = std::min(first + 2, source_height_);
  while (next_step_ < n_steps_) {
    bool is_ready = true;
    const auto [begin, end] = rows_of(next_step_);
    for (auto y = static_cast<std::size_t>(begin); y < static_cast<std::size_t>(end); ++y) {
      is_ready = is_ready && down_.first[y] + down_.count[y] <= n_rows_;
    }
    if (!is_ready) break;
    emit(next_step_++);
  }
  return {};
}

VerticalView Resampler::view_of(int y0, int y1, int c, std::size_t slot) {
  const std::array<std::size_t, 2> y = {static_cast<std::size_t>(y0), static_cast<std::size_t>(y1)};
  VerticalView view{};
  view.n_groups = n_groups_;
  view.n_pairs = std::max(n_pairs_[y[0]], n_pairs_[y[1]]);
  view.precision = down_.precision;
  view.group_offset = target_->group_offsets();
  for (std::size_t i = 0; i < 2; ++i) {
    view.weights[i] = pair_weights_ + y[i] * static_cast<std::size_t>(vertical_stride_);
    auto& pointers = pair_pointers_[slot + i];
    for (int t = 0; t < view.n_pairs; ++t) pointers[static_cast<std::size_t>(t)] = ring_row(first_pair_[y[i]] + t, c);
    view.pairs[i] = pointers.data();
  }
  return view;
}

void Resampler::emit(int step) {
  const auto [begin, end] = rows_of(step);
  const bool has_lines = target_->has_lines() && end - begin == kStepRows;
  for (int c = 0; c < 3; ++c) {
    if (has_lines) {
      vertical_quad(view_of(begin, begin + 1, c, 0), view_of(begin + 2, begin + 3, c, 2), target_->row(begin, c));
      continue;
    }
    for (int y = begin; y < end; y += 2) {
      const int next = std::min(y + 1, end - 1);
      vertical_rows(view_of(y, next, c, 0), {target_->row(y, c), target_->row(next, c)});
    }
  }
  for (int y = begin; y < end; ++y) target_->finish(y);
}

void Resampler::copy_rows(int first, const RowPair& pair) {
  const std::uint32_t* offsets = target_->group_offsets();
  for (int i = 0; i < 2 && first + i < source_height_; ++i) {
    const int y = mirror_.is_upside_down ? height_ - 1 - (first + i) : first + i;
    for (int c = 0; c < 3; ++c) {
      const std::uint8_t* from = pair.rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(c)];
      std::uint8_t* to = target_->row(y, c);
      for (int g = 0; g < n_groups_; ++g) std::memcpy(to + offsets[g], from + g * kGroupPixels, kGroupPixels);
    }
    target_->finish(y);
  }
  n_rows_ = std::min(first + 2, source_height_);
  if (n_rows_ == source_height_) next_step_ = n_steps_;
}

}  // namespace stoker
