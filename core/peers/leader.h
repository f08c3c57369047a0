#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "peers/messages.h"
#include "peers/place.h"
#include "peers/socket.h"

namespace stoker::peers {

/// What the peers of a leader are doing.
struct PeerStats {
  int n_joined = 0;           ///< ever
  int n_left = 0;             ///< of these, that have ended or closed their loader
  std::int64_t n_unread = 0;  ///< packs that the slowest of the others has not taken yet
  std::string missing;        ///< "2, 3": those that never came
};

/// Hands deliveries to the other processes of a node that get the same ones. A block stays in use until its last array
/// on every peer is gone; a peer that ended holds none. What a slow peer has not taken stays too, so that the memory
/// budget makes the engine pause: nothing here grows beyond the blocks there are.
///
/// A peer that ends is reported and given up, not waited for; it cannot come back. Threads: any; one of its own.
class Leader {
 public:
  using Wanted = std::function<void(std::int64_t step)>;
  using Say = std::function<void(std::string_view line)>;

  /// Takes the names of its place, waiting up to `limit` for an earlier holder to go.
  /// @return PEER_MISMATCH if it does not; STOPPED.
  static Result<std::unique_ptr<Leader>> listen(const Place& place, Nanos limit, const Say& say,
                                                const std::stop_token& stop, const Clock& clock);
  ~Leader() { close(); }
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  /// What opening is doing, for those who wait.
  void tell(std::string_view line) STOKER_EXCLUDES(mu_);
  /// Model and data are open.
  void welcome(Welcome welcome) STOKER_EXCLUDES(mu_);
  /// The run starts here. `wanted` is called with each step that a peer's trainer asks for, on the thread of this.
  void start(const PlanState& state, Wanted wanted) STOKER_EXCLUDES(mu_);
  /// The next delivery of the run. Does not block.
  void publish(const Delivery& delivery) STOKER_EXCLUDES(mu_);
  /// Nothing comes after it: what ended the run, or OK at its end. Only the first counts.
  void end(const Status& status, BadCounts bad = {}) STOKER_EXCLUDES(mu_);
  /// See BlockPool::on_unmapped.
  void forget(std::uint64_t block_id) STOKER_EXCLUDES(mu_);

  /// Whether all peers have joined, once within `timeout`.
  bool all_joined_within(std::chrono::milliseconds timeout) STOKER_EXCLUDES(mu_);
  /// Not ok if the peers cannot go on together: STATE when one starts elsewhere.
  Status failure() const STOKER_EXCLUDES(mu_);
  PeerStats stats() const STOKER_EXCLUDES(mu_);

  /// Tells the peers that nothing more comes, and ends the thread; takes half a second at most. Repeatable.
  void close() STOKER_EXCLUDES(mu_, close_mu_);

 private:
  struct Outgoing {
    std::string bytes;
    std::shared_ptr<const Block> block;  // of a pack
    std::uint64_t sequence = 0;          // of a pack
  };
  struct Peer {
    bool has_joined = false, has_left = false;
    pid_t pid = 0;
    OwnedFd socket, watch;
    std::deque<std::shared_ptr<const Outgoing>> outbox;
    std::set<std::uint64_t> known_blocks;
    std::map<std::uint64_t, std::shared_ptr<const Block>> held;  // by sequence: sent, not yet released
    std::uint64_t n_taken = 0;
  };
  struct Visitor {
    OwnedFd socket;
    pid_t pid = 0;
    Nanos since{0};
  };
  using Dropped = std::vector<std::shared_ptr<const Block>>;  // let go of after unlocking

  Leader(const Place& place, OwnedFd listener, std::optional<OwnedFd> desk, const Clock& clock);
  void run(const std::stop_token& stop) STOKER_EXCLUDES(mu_);
  void accept_visitors(const OwnedFd& listener);
  bool hear(Visitor& visitor) STOKER_EXCLUDES(mu_);
  std::string join(const Hello& hello, Visitor& visitor) STOKER_EXCLUDES(mu_);
  void read(std::size_t rank) STOKER_EXCLUDES(mu_);
  bool take_in(std::size_t rank, const Message& message, Dropped& dropped, std::optional<std::int64_t>& wanted)
      STOKER_REQUIRES(mu_);
  void compare_start(std::size_t rank, const PlanState& state) STOKER_REQUIRES(mu_);
  void lose(std::size_t rank) STOKER_EXCLUDES(mu_);
  void flush() STOKER_EXCLUDES(mu_);
  void post(std::shared_ptr<const Outgoing> outgoing) STOKER_REQUIRES(mu_);
  void post(const Message& message) STOKER_REQUIRES(mu_);

  const Place place_;
  const Clock& clock_;
  const OwnedFd listener_;
  const std::optional<OwnedFd> desk_;
  const Waker waker_;

  std::vector<Visitor> visitors_;  // the thread's own

  mutable Mutex mu_;
  std::condition_variable_any joined_;
  std::vector<Peer> peers_ STOKER_GUARDED_BY(mu_);  // (count); the first is the leader itself and unused
  int n_joined_ STOKER_GUARDED_BY(mu_) = 0;
  std::uint64_t n_published_ STOKER_GUARDED_BY(mu_) = 0;
  bool is_ended_ STOKER_GUARDED_BY(mu_) = false;
  std::optional<PlanState> started_ STOKER_GUARDED_BY(mu_);
  std::map<std::size_t, PlanState> early_starts_ STOKER_GUARDED_BY(mu_);  // of peers that were faster
  Wanted wanted_ STOKER_GUARDED_BY(mu_);
  std::int64_t last_wanted_ STOKER_GUARDED_BY(mu_) = -1;  // before the start
  Status failure_ STOKER_GUARDED_BY(mu_);

  Mutex close_mu_;
  std::jthread thread_;  // last: joined first
};

}  // namespace stoker::peers
