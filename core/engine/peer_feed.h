#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "engine/feed.h"
#include "engine/pipeline_feed.h"
#include "metric/metric.h"
#include "peers/follower.h"
#include "peers/leader.h"

namespace stoker {

/// The engine of this process, whose deliveries go to the other peers too, each as soon as it is ready: no peer waits
/// for this one's trainer. The first one comes when all peers have joined.
class LeaderFeed final : public Feed {
 public:
  LeaderFeed(const LoaderSettings& settings, std::unique_ptr<PipelineFeed> engine,
             std::shared_ptr<peers::Leader> leader, const PlanState& start, const Clock& clock);
  ~LeaderFeed() override { stop(); }

  void want_step(std::int64_t step) override { engine_->want_step(step); }
  Result<std::optional<Item>> take_within(std::chrono::milliseconds timeout) override STOKER_EXCLUDES(mu_);
  bool is_at_end() const override { return is_at_end_; }
  LeftOver take_left_over() override STOKER_EXCLUDES(mu_);
  std::optional<Stall> stall() override STOKER_EXCLUDES(mu_);
  std::string waits_for() const override { return engine_->waits_for(); }
  void end_with(const Status& status) override { leader_->end(status); }
  void stop() override STOKER_EXCLUDES(stop_mu_, mu_);
  std::optional<PipelineSnapshot> snapshot() const override;
  std::optional<PeerReport> peers() const override;

 private:
  void run(const std::stop_token& stop) STOKER_EXCLUDES(mu_);

  const LoaderSettings& settings_;
  const Clock& clock_;
  const std::unique_ptr<PipelineFeed> engine_;
  const std::shared_ptr<peers::Leader> leader_;
  Occupancy ready_occupancy_;

  bool have_all_joined_ = false, is_at_end_ = false;  // the trainer thread's own

  mutable Mutex mu_;
  std::condition_variable_any changed_;
  std::deque<Item> ready_ STOKER_GUARDED_BY(mu_);  // bounded by the memory limit
  std::optional<Status> ended_ STOKER_GUARDED_BY(mu_);
  LeftOver left_over_ STOKER_GUARDED_BY(mu_);
  std::optional<Stall> engine_stall_ STOKER_GUARDED_BY(mu_);
  bool is_stopped_ STOKER_GUARDED_BY(mu_) = false;

  Mutex stop_mu_;
  std::jthread thread_;  // last: joined first
};

/// The engine of the peer that leads.
class FollowerFeed final : public Feed {
 public:
  FollowerFeed(const LoaderSettings& settings, std::shared_ptr<peers::Follower> follower, const PlanState& start);

  void want_step(std::int64_t step) override { follower_->want_step(step); }
  Result<std::optional<Item>> take_within(std::chrono::milliseconds timeout) override;
  bool is_at_end() const override { return follower_->is_at_end(); }
  LeftOver take_left_over() override { return {{}, follower_->take_left_over()}; }
  std::string waits_for() const override { return "peer 0 of this node, which prepares the batches"; }
  void stop() override { follower_->close(); }
  std::optional<PeerReport> peers() const override;

 private:
  const LoaderSettings& settings_;
  const std::shared_ptr<peers::Follower> follower_;
};

}  // namespace stoker
