#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "engine/loader_state.h"
#include "mem/block.h"
#include "peers/messages.h"

namespace stoker {

/// What passes between a loader and whoever brings its batches from elsewhere: the rank client of a cluster.
///
/// The client tells how opening goes, welcomes, waits for the start, then puts packs in order and follows the step that
/// the trainer wants; how much it puts ahead is its own to bound, by held_bytes(). Its messages are foreign bytes.
/// Threads: any. No call blocks longer than its timeout; after close() none blocks.
class HandOver {
 public:
  explicit HandOver(const Clock& clock = Clock::real()) : clock_(clock) {}

  // --- the client's side

  /// What is being done, or why nothing comes, for people; empty: nothing to say.
  void say(std::string line) STOKER_EXCLUDES(mu_);
  /// The run is open. @param message  peers::Welcome. @return PEER_MISMATCH for anything else, or a second one.
  Status welcome(std::string_view message) STOKER_EXCLUDES(mu_);
  /// Where the trainer's run starts, once it has asked for its first batch; nothing if it did not within `timeout`.
  std::optional<LoaderState> start_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  /// The step that the trainer wants, once that is beyond `step`; nothing if it was not within `timeout`.
  std::optional<std::int64_t> wanted_within(std::int64_t step, std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  /// The next pack.
  /// @param delivery  peers::Pack, its `block_bytes` those of the planned layout.
  /// @param pixels    The patches as they lie, at least as many bytes as the layout has; not copied, and kept until the
  ///                  last array of them is gone.
  /// @param tail      What squeeze() made of everything else.
  /// @return PEER_MISMATCH for another message, a pack out of turn, or arrays that are not whole: nothing is put then.
  ///         STOPPED after close().
  Status put(std::string_view delivery, std::shared_ptr<const Block> pixels, std::string_view tail)
      STOKER_EXCLUDES(mu_);
  /// Nothing comes after what was put. @param message  peers::End, with what ends the run there, or OK at the end of
  /// finite data.
  Status end(std::string_view message) STOKER_EXCLUDES(mu_);
  /// The run ends now, also for packs that were put and not yet taken. The first one counts.
  void fail(Status status) STOKER_EXCLUDES(mu_);

  /// The loader takes nothing any more: it was closed, or has ended with an error.
  bool is_closed() const { return is_closed_; }
  /// Of packs that were put and whose arrays are not all gone; pixels and the rest.
  std::int64_t held_bytes() const { return held_bytes_->load(std::memory_order_relaxed); }
  std::int64_t n_unread() const STOKER_EXCLUDES(mu_);  ///< packs that the trainer has not taken
  /// For how long the trainer has waited for packs in all, a wait that goes on included.
  Nanos waited() const STOKER_EXCLUDES(mu_);

  // --- the loader's side

  /// Nothing if no welcome came within `timeout`. @return What fail() or end() was told.
  Result<std::optional<peers::Welcome>> welcome_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  std::string line() const STOKER_EXCLUDES(mu_);
  void start(const LoaderState& state) STOKER_EXCLUDES(mu_);
  void want_step(std::int64_t step) STOKER_EXCLUDES(mu_);
  /// The next delivery; nothing if none came within `timeout`, or at the end.
  /// @return What ended the run: of end() after everything that was put, of fail() at once. STOPPED after close().
  Result<std::optional<peers::Delivery>> take_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  bool is_at_end() const STOKER_EXCLUDES(mu_);
  /// What end() counted as not used; not empty only after the end, once.
  peers::BadCounts take_left_over() STOKER_EXCLUDES(mu_);
  /// Lets go of what was not taken, and ends every wait. Batches that were taken stay valid. Repeatable.
  void close() STOKER_EXCLUDES(mu_);

 private:
  Status check_turn(const peers::Delivery& delivery) STOKER_REQUIRES(mu_);
  bool is_over() const STOKER_REQUIRES(mu_) { return is_closed_ || !failed_.ok(); }

  const Clock& clock_;

  std::atomic<bool> is_closed_{false};  // written by close(), under the lock
  // Owned by every pack as well: batches may outlive this.
  const std::shared_ptr<std::atomic<std::int64_t>> held_bytes_ = std::make_shared<std::atomic<std::int64_t>>(0);

  mutable Mutex mu_;
  std::condition_variable_any changed_;
  std::string line_ STOKER_GUARDED_BY(mu_);
  std::optional<peers::Welcome> welcome_ STOKER_GUARDED_BY(mu_);
  std::optional<LoaderState> start_ STOKER_GUARDED_BY(mu_);
  std::int64_t wanted_ STOKER_GUARDED_BY(mu_) = -1;
  std::int64_t next_step_ STOKER_GUARDED_BY(mu_) = 0;         // whose pack is put next
  std::int64_t next_micro_batch_ STOKER_GUARDED_BY(mu_) = 0;  // of it
  std::deque<peers::Delivery> ready_ STOKER_GUARDED_BY(mu_);
  Nanos waited_ STOKER_GUARDED_BY(mu_){0};
  std::optional<Nanos> waits_since_ STOKER_GUARDED_BY(mu_);
  std::optional<peers::End> end_ STOKER_GUARDED_BY(mu_);
  Status failed_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker
