#include "engine/hand_over.h"

#include <fmt/format.h>

#include <algorithm>

#include <utility>
#include <variant>

#include "data/pack_wire.h"

namespace stoker {
namespace {

Status mismatch(std::string what) { return {Reason::kPeerMismatch, std::move(what)}; }

Status closed() { return {Reason::kStopped, "the loader was closed"}; }

template <typename T>
Result<T> decode_as(std::string_view bytes, const char* what) {
  STOKER_TRY(peers::Message message, peers::decode(bytes));
  auto* const wanted = std::get_if<T>(&message);
  if (wanted == nullptr) return mismatch(fmt::format("another message came in place of {}", what));
  return std::move(*wanted);
}

/// `block` counted in `held` until its last reference is gone.
std::shared_ptr<const Block> counting(std::shared_ptr<const Block> block,
                                      const std::shared_ptr<std::atomic<std::int64_t>>& held) {
  struct Counted {
    std::shared_ptr<const Block> block;
    std::shared_ptr<std::atomic<std::int64_t>> held;
    ~Counted() { held->fetch_sub(static_cast<std::int64_t>(block->size()), std::memory_order_relaxed); }
  };
  held->fetch_add(static_cast<std::int64_t>(block->size()), std::memory_order_relaxed);
  const Block* const at = block.get();
  return {std::shared_ptr<Counted>(new Counted{std::move(block), held}), at};
}

}  // namespace

void HandOver::say(std::string line) {
  MutexLock lock(mu_);
  line_ = std::move(line);
}

std::string HandOver::line() const {
  MutexLock lock(mu_);
  return line_;
}

Status HandOver::welcome(std::string_view message) {
  STOKER_TRY(auto welcome, decode_as<peers::Welcome>(message, "the welcome"));
  MutexLock lock(mu_);
  if (welcome_) return mismatch("a second welcome came");
  welcome_ = std::move(welcome);
  changed_.notify_all();
  return {};
}

std::optional<LoaderState> HandOver::start_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, timeout, [this]() STOKER_NO_ANALYSIS { return start_ || is_over(); });
  return start_;
}

std::optional<std::int64_t> HandOver::wanted_within(std::int64_t step, std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, timeout, [&]() STOKER_NO_ANALYSIS { return wanted_ > step || is_over(); });
  return wanted_ > step ? std::optional(wanted_) : std::nullopt;
}

Status HandOver::check_turn(const peers::Delivery& delivery) {
  const BatchCounts& counts = delivery.batch.counts;
  if (!start_ || end_) return mismatch("a pack came before the start, or after the end");
  const bool is_last = counts.micro_batch + 1 == counts.micro_batches_in_step;
  if (counts.step != next_step_ || counts.micro_batch != next_micro_batch_ || delivery.is_last_of_step != is_last ||
      counts.micro_batch >= counts.micro_batches_in_step ||
      (is_last && delivery.state_after.step != static_cast<std::uint64_t>(counts.step) + 1)) {
    return mismatch(fmt::format("micro-batch {} of {} of step {} came, micro-batch {} of step {} is due",
                                counts.micro_batch, counts.micro_batches_in_step, counts.step, next_micro_batch_,
                                next_step_));
  }
  return {};
}

Status HandOver::put(std::string_view delivery, std::shared_ptr<const Block> pixels, std::string_view tail) {
  STOKER_TRY(auto pack, decode_as<peers::Pack>(delivery, "a pack"));
  Batch& batch = pack.delivery.batch;
  const PackLayout layout = batch.layout();
  if (pack.block_bytes != layout.n_bytes) return mismatch("a pack came with another size than its layout has");
  if (pixels->size() < layout.pixel_bytes()) {
    return mismatch(
        fmt::format("a pack came with {} bytes of pixels, its layout has {}", pixels->size(), layout.pixel_bytes()));
  }
  STOKER_TRY(batch.block, expand(tail, layout));
  batch.block = counting(std::move(batch.block), held_bytes_);
  batch.pixels = counting(std::move(pixels), held_bytes_);
  Status status;
  {
    MutexLock lock(mu_);
    status = is_closed_ ? closed() : check_turn(pack.delivery);
    if (status.ok()) {
      const bool is_last = pack.delivery.is_last_of_step;
      next_step_ += is_last ? 1 : 0;
      next_micro_batch_ = is_last ? 0 : next_micro_batch_ + 1;
      ready_.push_back(std::move(pack.delivery));
      changed_.notify_all();
    }
  }
  return status;  // what was refused goes after the lock: its owner may be anybody's
}

Status HandOver::end(std::string_view message) {
  STOKER_TRY(auto end, decode_as<peers::End>(message, "the end"));
  MutexLock lock(mu_);
  if (end_) return mismatch("a second end came");
  end_ = std::move(end);
  changed_.notify_all();
  return {};
}

void HandOver::fail(Status status) {
  MutexLock lock(mu_);
  if (failed_.ok()) failed_ = std::move(status);
  changed_.notify_all();
}

std::int64_t HandOver::n_unread() const {
  MutexLock lock(mu_);
  return static_cast<std::int64_t>(ready_.size());
}

Nanos HandOver::waited() const {
  MutexLock lock(mu_);
  return waits_since_ ? waited_ + (clock_.now() - *waits_since_) : waited_;
}

Result<std::optional<peers::Welcome>> HandOver::welcome_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, timeout, [this]() STOKER_NO_ANALYSIS { return welcome_ || end_ || is_over(); });
  if (!failed_.ok()) return failed_;
  if (is_closed_) return closed();
  if (!welcome_ && end_) return end_->status.ok() ? mismatch("the run ended before it began") : end_->status;
  return welcome_;
}

void HandOver::start(const LoaderState& state) {
  MutexLock lock(mu_);
  start_ = state;
  next_step_ = static_cast<std::int64_t>(state.cursor.step);
  changed_.notify_all();
}

void HandOver::want_step(std::int64_t step) {
  MutexLock lock(mu_);
  wanted_ = std::max(wanted_, step);
  changed_.notify_all();
}

Result<std::optional<peers::Delivery>> HandOver::take_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  waits_since_ = clock_.now();
  changed_.wait_for(lock, timeout, [this]() STOKER_NO_ANALYSIS { return !ready_.empty() || end_ || is_over(); });
  waited_ += clock_.now() - *std::exchange(waits_since_, std::nullopt);
  if (is_closed_) return closed();
  if (!failed_.ok()) return failed_;
  if (!ready_.empty()) {
    std::optional<peers::Delivery> next(std::move(ready_.front()));
    ready_.pop_front();
    return next;
  }
  if (end_ && !end_->status.ok()) return end_->status;
  return std::optional<peers::Delivery>();
}

bool HandOver::is_at_end() const {
  MutexLock lock(mu_);
  return end_ && end_->status.ok() && ready_.empty() && failed_.ok();
}

peers::BadCounts HandOver::take_left_over() {
  MutexLock lock(mu_);
  if (!end_ || !ready_.empty()) return {};
  return std::exchange(end_->bad, {});
}

void HandOver::close() {
  std::deque<peers::Delivery> dropped;
  MutexLock lock(mu_);
  is_closed_ = true;
  dropped.swap(ready_);
  changed_.notify_all();
}

}  // namespace stoker
