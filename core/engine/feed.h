#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "peers/messages.h"
#include "pipeline/ledger.h"
#include "pipeline/pipeline.h"

namespace stoker {

/// What a loader shares with the other processes of its node that get the same batches.
struct PeerReport {
  std::int32_t rank = 0, count = 1;
  std::int32_t n_joined = 0;  ///< the leader's: others that came
  std::int32_t n_left = 0;    ///< of these, that have ended
  std::int64_t n_unread = 0;  ///< batches that the slowest of the others has not taken yet
};

/// Why nothing comes although nothing is wrong with storage.
struct Stall {
  std::string sentence;
  Reason reason = Reason::kNone;  ///< the error that it is once it lasted as long as an outage may; kNone: never
};

/// Where a loader's deliveries come from: the engine in this process, or that of a peer. Threads: the trainer's, except
/// where it is said.
class Feed {
 public:
  struct Item {
    peers::Delivery delivery;
    std::vector<LedgerEntry> ledger;  ///< lines to write before it is handed over; counted in delivery.bad
    Status verdict;                   ///< not ok: what ends the run in its place
  };

  struct LeftOver {
    std::vector<LedgerEntry> ledger;  ///< lines to write
    peers::BadCounts bad;
  };

  virtual ~Feed() = default;
  /// The trainer wants this step: work may run up to it, and ahead of it as far as prefetch goes.
  virtual void want_step(std::int64_t step) = 0;
  /// The next in plan order; nothing if none came within `timeout`, or at the end of finite data (`is_at_end`).
  virtual Result<std::optional<Item>> take_within(std::chrono::milliseconds timeout) = 0;
  virtual bool is_at_end() const = 0;
  /// Of samples that no delivery carries; not empty only after the end, once.
  virtual LeftOver take_left_over() = 0;
  virtual std::optional<Stall> stall() { return std::nullopt; }
  /// What the next delivery waits for, for people.
  virtual std::string waits_for() const = 0;
  /// The loader itself ends the run, so that peers learn why.
  virtual void end_with(const Status& status) { (void)status; }

  /// Ends every thread within a second. Repeatable. Threads: any.
  virtual void stop() = 0;
  virtual std::optional<PipelineSnapshot> snapshot() const { return std::nullopt; }  ///< Threads: any.
  virtual std::optional<PeerReport> peers() const { return std::nullopt; }           ///< Threads: any.
};

/// Entries by their reason.
peers::BadCounts counted(const std::vector<LedgerEntry>& entries);

}  // namespace stoker
