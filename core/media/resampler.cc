#include "media/resampler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "media/wide_kernels.h"

namespace stoker {
namespace {

constexpr int kBlockOutputs = 4;
constexpr int kWindowBytes = 16;
constexpr int kWideWindowBytes = 64;
constexpr int kMaxFewPairs = 4;     // of form kWindow
constexpr int kMaxWindowPairs = 3;  // of form kSlidingWindow
constexpr int kStepRows = 4;
constexpr std::size_t kOutputBytes = 4;     // in each row of a table: two int16 taps
constexpr std::size_t kTableRowBytes = 64;  // of a group: its shuffles, and each part of its weights

int groups_of(int width) { return (width + kGroupPixels - 1) / kGroupPixels; }

std::int32_t as_word(std::int16_t low, std::int16_t high) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(static_cast<std::uint16_t>(high)) << 16 |
                                   static_cast<std::uint16_t>(low));
}

}  // namespace

void Resampler::start(const ResampleJob& job, RowTarget& target) {
  job_ = job;
  n_groups_ = groups_of(job.width);
  target_ = &target;
  n_steps_ = (job.height + kStepRows - 1) / kStepRows;
  next_step_ = 0;
  n_rows_ = 0;
  make_taps(job.source_width, job.width, job.mirror.is_left_right, job.weights, across_);
  make_taps(job.source_height, job.height, job.mirror.is_upside_down, job.weights, down_);
  // With one pass there is no order.
  is_down_first_ = job.is_down_first && job.source_width != job.width && job.source_height != job.height;
  make_horizontal();
  make_vertical();
  make_strip();
}

void Resampler::make_horizontal() {
  horizontal_.n_groups = n_groups_;
  horizontal_.n_parts = across_.n_parts;
  horizontal_.precision = across_.precision;
  const int n_pairs = (across_.max_count + 1) / 2;
  horizontal_.n_pairs = n_pairs;
  if (is_wide(n_pairs)) {
    horizontal_.form = HorizontalView::Form::kWide;
    return make_windows(kGroupPixels, n_pairs);
  }
  const int room = kWindowBytes - spread(kBlockOutputs);
  if (room < 2) return make_dots();
  horizontal_.is_shared = spread(2 * kBlockOutputs) + 2 * n_pairs <= kWindowBytes;
  horizontal_.window_pairs = std::min(room / 2, kMaxWindowPairs);
  horizontal_.form = HorizontalView::Form::kSlidingWindow;
  if (n_pairs <= std::min(room / 2, kMaxFewPairs) && (across_.n_parts > 1 || across_.precision <= 16)) {
    horizontal_.form = HorizontalView::Form::kWindow;
    horizontal_.window_pairs = n_pairs;
    if (horizontal_.is_shared) return make_windows(2 * kBlockOutputs, n_pairs);
  }
  make_windows(kBlockOutputs, n_pairs);
}

/// The largest distance between the first taps of neighbouring outputs, by `n_outputs` of them.
int Resampler::spread(int n_outputs) const {
  int widest = 0;
  for (int begin = 0; begin < job_.width; begin += n_outputs) {
    const auto [lo, hi] = std::minmax_element(across_.first.begin() + begin,
                                              across_.first.begin() + std::min(begin + n_outputs, job_.width));
    widest = std::max(widest, *hi - *lo);
  }
  return widest;
}

/// Whether the wide kernels can be used; then how far a window reaches.
bool Resampler::is_wide(int n_pairs) {
  const int room = kWideWindowBytes - spread(kGroupPixels);
  if (wide_kernels() == nullptr || room < 2) return false;
  horizontal_.window_pairs = std::min(n_pairs, room / 2);
  // The last window must not reach behind the row's slack, which narrow last groups of strongly shrunk rows would do.
  const int begin = (n_groups_ - 1) * kGroupPixels;
  const int base = *std::min_element(across_.first.begin() + begin, across_.first.end());
  const int last_window = (n_pairs - 1) / horizontal_.window_pairs * horizontal_.window_pairs * 2;
  return base + last_window + kWideWindowBytes <= job_.source_width + kRowSlackBytes;
}

/// @param n_outputs  With a window of their own: a block or a group.
void Resampler::make_windows(int n_outputs, int n_pairs) {
  const auto n_parts = static_cast<std::size_t>(across_.n_parts);
  const std::size_t pair_bytes = (1 + n_parts) * kTableRowBytes;
  const std::size_t group_bytes = static_cast<std::size_t>(n_pairs) * pair_bytes;
  const auto n_groups = static_cast<std::size_t>(n_groups_);
  auto* table = table_memory_.get<std::uint8_t>(n_groups * group_bytes);
  const int n_bases = n_outputs == kGroupPixels ? 1 : kGroupPixels / kBlockOutputs;  // of a group
  auto* base = base_memory_.get<std::int32_t>(n_groups * static_cast<std::size_t>(n_bases));
  for (int begin = 0; begin < n_groups_ * kGroupPixels; begin += n_outputs) {
    const int end = std::min(begin + n_outputs, job_.width);
    const int lo = begin < end ? *std::min_element(across_.first.begin() + begin, across_.first.begin() + end) : 0;
    for (int x = begin; x < begin + n_outputs; x += kGroupPixels / n_bases) base[x * n_bases / kGroupPixels] = lo;
    for (int x = begin; x < begin + n_outputs; ++x) {
      std::uint8_t* at = table + static_cast<std::size_t>(x / kGroupPixels) * group_bytes +
                         static_cast<std::size_t>(x % kGroupPixels) * kOutputBytes;
      for (int t = 0; t < n_pairs; ++t, at += pair_bytes) {
        const int in_window = t % horizontal_.window_pairs * 2;
        std::array<std::uint8_t, 4> shuffle = {0x80, 0x80, 0x80, 0x80};
        std::array<std::array<std::int16_t, 2>, 2> weights{};  // by part, by tap
        for (int k = 0; k < 2 && x < end; ++k) {
          const int tap = 2 * t + k;
          if (tap >= across_.count[static_cast<std::size_t>(x)]) break;
          const int offset = across_.first[static_cast<std::size_t>(x)] - lo + in_window + k;
          shuffle[static_cast<std::size_t>(2 * k)] = static_cast<std::uint8_t>(offset);
          const auto parts = across_.parts_of(across_.weights_of(x)[tap]);
          for (std::size_t part = 0; part < n_parts; ++part) weights[part][static_cast<std::size_t>(k)] = parts[part];
        }
        std::memcpy(at, shuffle.data(), kOutputBytes);
        for (std::size_t part = 0; part < n_parts; ++part) {
          std::memcpy(at + (1 + part) * kTableRowBytes, weights[part].data(), kOutputBytes);
        }
      }
    }
  }
  auto* is_fewer = fewer_memory_.get<std::uint8_t>(n_groups);
  for (int begin = 0; begin < job_.width; begin += kGroupPixels) {
    const auto count = across_.count.begin();
    const int most = *std::max_element(count + begin, count + std::min(begin + kGroupPixels, job_.width));
    is_fewer[begin / kGroupPixels] = most <= 2 * (n_pairs - 1);
  }
  horizontal_.table = table;
  horizontal_.base = base;
  horizontal_.is_fewer = is_fewer;
}

void Resampler::make_dots() {
  horizontal_.form = HorizontalView::Form::kDot;
  const int n_taps = static_cast<int>(round_up(static_cast<std::size_t>(across_.max_count), 16));
  horizontal_.n_pairs = n_taps / 2;
  const auto n_outputs = static_cast<std::size_t>(n_groups_) * kGroupPixels;
  const auto n_parts = static_cast<std::size_t>(across_.n_parts);
  const std::size_t output_weights = n_parts * static_cast<std::size_t>(n_taps);
  auto* weights = table_memory_.get<std::int16_t>(n_outputs * output_weights);
  auto* base = base_memory_.get<std::int32_t>(n_outputs);
  std::fill_n(weights, n_outputs * output_weights, std::int16_t{0});
  std::fill_n(base, n_outputs, 0);
  for (int x = 0; x < job_.width; ++x) {
    // Moved left at the right edge, so that whole vectors of taps stay within the row's slack.
    const int first = across_.first[static_cast<std::size_t>(x)];
    const int from = std::max(0, std::min(first, job_.source_width - n_taps));
    base[x] = from;
    for (int tap = 0; tap < across_.count[static_cast<std::size_t>(x)]; ++tap) {
      const auto parts = across_.parts_of(across_.weights_of(x)[tap]);
      std::int16_t* to = weights + static_cast<std::size_t>(x) * output_weights + (first - from) + tap;
      for (std::size_t part = 0; part < n_parts; ++part) to[part * static_cast<std::size_t>(n_taps)] = parts[part];
    }
  }
  horizontal_.table = reinterpret_cast<const std::uint8_t*>(weights);
  horizontal_.base = base;
}

/// The output rows of a step, in the order in which their source rows arrive.
Resampler::Rows Resampler::rows_of(int step) const {
  const int near = kStepRows * step;
  const int far = std::min(near + kStepRows, job_.height);
  return job_.mirror.is_upside_down ? Rows{job_.height - far, job_.height - near} : Rows{near, far};
}

void Resampler::make_vertical() {
  const auto rows = static_cast<std::size_t>(job_.height);
  const auto n_parts = static_cast<std::size_t>(down_.n_parts);
  first_pair_.resize(rows);
  n_pairs_.resize(rows);
  vertical_stride_ = down_.max_count / 2 + 1;
  pair_weights_ = weight_memory_.get<std::int32_t>(rows * static_cast<std::size_t>(vertical_stride_) * n_parts);
  std::int32_t* word = pair_weights_;
  for (std::size_t y = 0; y < rows; ++y) {
    const int first = down_.first[y];
    const int end = first + down_.count[y];
    const std::int32_t* taps = down_.weights_of(static_cast<int>(y));
    first_pair_[y] = first / 2;
    n_pairs_[y] = (end - 1) / 2 - first / 2 + 1;
    for (int t = 0; t < vertical_stride_; ++t) {
      const int row = (first_pair_[y] + t) * 2;
      const auto parts = [&](int r) { return down_.parts_of(r >= first && r < end ? taps[r - first] : 0); };
      const auto low = parts(row);
      const auto high = parts(row + 1);
      for (std::size_t part = 0; part < n_parts; ++part) *word++ = as_word(low[part], high[part]);
    }
  }
  // The ring holds what lies between the oldest row that a step still reads and the newest that had to arrive before
  // it.
  int newest = 0;
  int pairs = 1;
  for (int step = 0; step < n_steps_; ++step) {
    int oldest = job_.source_height / 2;
    const auto [begin, end] = rows_of(step);
    for (auto y = static_cast<std::size_t>(begin); y < static_cast<std::size_t>(end); ++y) {
      newest = std::max(newest, first_pair_[y] + n_pairs_[y] - 1);
      oldest = std::min(oldest, first_pair_[y]);
    }
    pairs = std::max(pairs, newest - oldest + 1);
  }
  ring_pairs_ = pairs;
  vertical_groups_ = is_down_first_ ? groups_of(job_.source_width) : n_groups_;
  ring_stride_ = static_cast<std::size_t>(vertical_groups_) * kGroupPixels * 2;
  ring_ = ring_memory_.get<std::int16_t>(static_cast<std::size_t>(ring_pairs_) * 3 * ring_stride_);
  for (auto& pointers : pair_pointers_) pointers.resize(static_cast<std::size_t>(vertical_stride_));
}

void Resampler::make_strip() {
  if (!is_down_first_ && !is_copy()) return;
  const auto groups = static_cast<std::size_t>(vertical_groups_);
  strip_stride_ = round_up(groups * kGroupPixels, 64) + kRowSlackBytes;
  strip_ = strip_memory_.get<std::uint8_t>(kStepRows * 3 * strip_stride_);
  strip_offsets_.resize(groups);
  for (std::size_t g = 0; g < groups; ++g) strip_offsets_[g] = static_cast<std::uint32_t>(g * kGroupPixels);
  finished_stride_ = static_cast<std::size_t>(n_groups_) * kGroupPixels * 2;
  finished_ = finished_memory_.get<std::int16_t>(kStepRows / 2 * 3 * finished_stride_);
}

Status Resampler::take(int first, const RowPair& pair) {
  if (is_copy()) {
    copy_rows(first, pair);
    return {};
  }
  const int at = first / 2 % ring_pairs_;
  const std::array<std::int16_t*, 3> to = {ring_row(at, 0), ring_row(at, 1), ring_row(at, 2)};
  if (across_.is_identity || is_down_first_) {
    zip_pair(pair, vertical_groups_, to);
  } else {
    horizontal_pair(horizontal_, pair, to);
  }
  n_rows_ = std::min(first + 2, job_.source_height);
  for (; next_step_ < n_steps_ && is_ready(next_step_); ++next_step_) {
    if (is_down_first_) {
      emit_down_first(next_step_);
    } else {
      emit(next_step_);
    }
  }
  return {};
}

/// Whether all source rows of a step have arrived.
bool Resampler::is_ready(int step) const {
  const auto [begin, end] = rows_of(step);
  for (auto y = static_cast<std::size_t>(begin); y < static_cast<std::size_t>(end); ++y) {
    if (down_.first[y] + down_.count[y] > n_rows_) return false;
  }
  return true;
}

VerticalView Resampler::view_of(int y0, int y1, int c, std::size_t slot) {
  const std::array<std::size_t, 2> y = {static_cast<std::size_t>(y0), static_cast<std::size_t>(y1)};
  const std::size_t row_words = static_cast<std::size_t>(vertical_stride_) * static_cast<std::size_t>(down_.n_parts);
  VerticalView view{};
  view.n_groups = vertical_groups_;
  view.n_pairs = {n_pairs_[y[0]], n_pairs_[y[1]]};
  const int n_pairs = std::max(view.n_pairs[0], view.n_pairs[1]);
  view.n_parts = down_.n_parts;
  view.precision = down_.precision;
  view.group_offset = is_down_first_ ? strip_offsets_.data() : target_->group_offsets();
  for (std::size_t i = 0; i < 2; ++i) {
    view.weights[i] = pair_weights_ + y[i] * row_words;
    auto& pointers = pair_pointers_[slot + i];
    int pair = first_pair_[y[i]] % ring_pairs_;
    for (int t = 0; t < n_pairs; ++t) {
      pointers[static_cast<std::size_t>(t)] = ring_row(pair, c);
      if (++pair == ring_pairs_) pair = 0;
    }
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

void Resampler::emit_down_first(int step) {
  const auto [begin, end] = rows_of(step);
  for (int y = begin; y < end; y += 2) {
    const int next = std::min(y + 1, end - 1);
    RowPair rows{};
    for (int c = 0; c < 3; ++c) {
      std::uint8_t* const first = strip_row(y - begin, c);
      std::uint8_t* const second = strip_row(next - begin, c);
      vertical_rows(view_of(y, next, c, 0), {first, second});
      rows.rows[0][static_cast<std::size_t>(c)] = first;
      rows.rows[1][static_cast<std::size_t>(c)] = second;
    }
    std::int16_t* const to = finished_ + static_cast<std::size_t>(y - begin) / 2 * 3 * finished_stride_;
    horizontal_pair(horizontal_, rows, {to, to + finished_stride_, to + 2 * finished_stride_});
  }
  put_pairs(begin, end);
}

/// Splits the finished pairs into the target's rows.
void Resampler::put_pairs(int begin, int end) {
  const bool has_lines = target_->has_lines() && end - begin == kStepRows;
  for (int c = 0; c < 3; ++c) {
    std::array<const std::int16_t*, 2> pairs{};
    std::array<VerticalView, 2> views{};
    for (std::size_t i = 0; i < 2; ++i) {
      pairs[i] = finished_ + (i * 3 + static_cast<std::size_t>(c)) * finished_stride_;
      VerticalView& view = views[i];
      view.n_groups = n_groups_;
      view.pairs[0] = &pairs[i];
      view.group_offset = target_->group_offsets();
    }
    if (has_lines) {
      vertical_quad(views[0], views[1], target_->row(begin, c));
      continue;
    }
    for (int y = begin; y < end; y += 2) {
      vertical_rows(views[static_cast<std::size_t>(y - begin) / 2],
                    {target_->row(y, c), target_->row(std::min(y + 1, end - 1), c)});
    }
  }
  for (int y = begin; y < end; ++y) target_->finish(y);
}

void Resampler::copy_rows(int first, const RowPair& pair) {
  n_rows_ = std::min(first + 2, job_.source_height);
  if (n_rows_ == job_.source_height) next_step_ = n_steps_;
  if (target_->has_lines() && job_.height % kStepRows == 0) return copy_lines(first, pair);
  const std::uint32_t* offsets = target_->group_offsets();
  for (int i = 0; i < 2 && first + i < job_.source_height; ++i) {
    const int y = job_.mirror.is_upside_down ? job_.height - 1 - (first + i) : first + i;
    for (int c = 0; c < 3; ++c) {
      const std::uint8_t* from = pair.rows[static_cast<std::size_t>(i)][static_cast<std::size_t>(c)];
      std::uint8_t* to = target_->row(y, c);
      for (int g = 0; g < n_groups_; ++g) std::memcpy(to + offsets[g], from + g * kGroupPixels, kGroupPixels);
    }
    target_->finish(y);
  }
}

/// Whole cache lines at a time: the first pair of four rows waits in the strip for the second one.
void Resampler::copy_lines(int first, const RowPair& pair) {
  const bool is_first = first % kStepRows == 0;
  const int begin = first / kStepRows * kStepRows;
  const int y = job_.mirror.is_upside_down ? job_.height - kStepRows - begin : begin;
  for (int c = 0; c < 3; ++c) {
    const auto plane = static_cast<std::size_t>(c);
    if (is_first) {
      const std::size_t n = static_cast<std::size_t>(n_groups_) * kGroupPixels;
      std::memcpy(strip_row(0, c), pair.rows[0][plane], n);
      std::memcpy(strip_row(1, c), pair.rows[1][plane], n);
      continue;
    }
    std::array<const std::uint8_t*, 4> rows = {strip_row(0, c), strip_row(1, c), pair.rows[0][plane],
                                               pair.rows[1][plane]};
    if (job_.mirror.is_upside_down) std::reverse(rows.begin(), rows.end());
    copy_quad(rows, n_groups_, target_->group_offsets(), target_->row(y, c));
  }
  for (int i = 0; i < kStepRows && !is_first; ++i) target_->finish(y + i);
}

}  // namespace stoker
