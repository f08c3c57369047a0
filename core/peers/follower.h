#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "mem/shared_memory.h"
#include "peers/messages.h"
#include "peers/place.h"
#include "peers/socket.h"

namespace stoker::peers {

/// What is said to the leader, from any thread, also when the follower itself is gone and only arrays are left: the
/// connection ends with the last of them. In a forked child it says nothing.
class Channel {
 public:
  explicit Channel(OwnedFd socket);
  const OwnedFd& socket() const { return socket_; }
  const Waker& waker() const { return waker_; }
  /// Does not block: what the socket has no room for goes with the next message or flush().
  void send(const Message& message) STOKER_EXCLUDES(mu_);
  /// @return Whether everything is sent, or will never be.
  bool flush() STOKER_EXCLUDES(mu_);

 private:
  bool send_some() STOKER_REQUIRES(mu_);

  const pid_t pid_;
  const OwnedFd socket_;
  const Waker waker_;

  Mutex mu_;
  std::deque<std::string> unsent_ STOKER_GUARDED_BY(mu_);
};

/// Reads the deliveries of a leader on the same node: arrays lie in memory of the leader, mapped to read and not
/// copied. Threads: any; one of its own.
class Follower {
 public:
  /// Begins to look for the leader, for `limit` at most.
  Follower(const Place& place, Nanos limit, const Clock& clock);
  ~Follower() { close(); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

  /// What the leader says once it has opened model and data; nothing if that took longer than `timeout`.
  /// @return PEER_LOST if there is no leader within the limit, or it ended; PEER_MISMATCH if it refuses this one; what
  ///         the leader's opening ended with.
  Result<std::optional<Welcome>> welcome_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  std::string progress() const STOKER_EXCLUDES(mu_);

  /// The run starts here. Once, after the welcome and before the first take_within().
  void start(const PlanState& state) STOKER_EXCLUDES(mu_);
  void want_step(std::int64_t step) STOKER_EXCLUDES(mu_);
  /// The next delivery; nothing if none came within `timeout`, or at the end (`is_at_end`).
  /// @return After everything that came: what ended the run on the leader; PEER_LOST if the leader ended without a
  /// word;
  ///         STATE if it started elsewhere.
  Result<std::optional<Delivery>> take_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  bool is_at_end() const STOKER_EXCLUDES(mu_);
  /// What was not used after the last delivery; not empty only after the end, once.
  BadCounts take_left_over() STOKER_EXCLUDES(mu_);

  /// Ends the thread. Arrays stay valid and are the leader's again when they are gone. Repeatable.
  void close() STOKER_EXCLUDES(mu_, close_mu_);

 private:
  enum class Meeting { kJoined, kNobody, kRefused };
  void run(const std::stop_token& stop) STOKER_EXCLUDES(mu_);
  bool meet(const std::stop_token& stop) STOKER_EXCLUDES(mu_);
  Meeting ask(const std::string& name, std::string& refusal, const std::stop_token& stop) STOKER_EXCLUDES(mu_);
  void read_until_end(const std::stop_token& stop) STOKER_EXCLUDES(mu_);
  Status take_in(Message& message, const OwnedFd& file) STOKER_EXCLUDES(mu_);
  Status take_in(Pack& pack, const OwnedFd& file) STOKER_EXCLUDES(mu_);
  void end_with(Status status) STOKER_EXCLUDES(mu_);
  void compare_starts() STOKER_REQUIRES(mu_);

  struct Waiting {
    std::uint64_t sequence = 0;
    Delivery delivery;
  };

  const Place place_;
  const Nanos limit_;
  const Clock& clock_;
  const Waker waker_;

  std::map<std::uint64_t, std::shared_ptr<const SharedMemory>> blocks_;  // from here on: the thread's own
  std::uint64_t n_received_ = 0;                                         // packs
  OwnedFd watch_;
  pid_t leader_pid_ = 0;

  mutable Mutex mu_;
  std::condition_variable_any changed_;
  std::shared_ptr<Channel> channel_ STOKER_GUARDED_BY(mu_);  // once it joined
  std::string progress_ STOKER_GUARDED_BY(mu_);
  std::optional<Welcome> welcome_ STOKER_GUARDED_BY(mu_);
  std::optional<PlanState> own_start_ STOKER_GUARDED_BY(mu_), leaders_start_ STOKER_GUARDED_BY(mu_);
  std::deque<Waiting> ready_ STOKER_GUARDED_BY(mu_);  // bounded by the leader's memory
  std::optional<Status> ended_ STOKER_GUARDED_BY(mu_);
  BadCounts left_over_ STOKER_GUARDED_BY(mu_);
  bool is_at_end_ STOKER_GUARDED_BY(mu_) = false;
  bool is_closed_ STOKER_GUARDED_BY(mu_) = false;

  Mutex close_mu_;
  std::jthread thread_;  // last: joined first
};

}  // namespace stoker::peers
