#include "engine/peer_feed.h"

#include <fmt/format.h>

#include <utility>

#include "exec/cpu.h"

namespace stoker {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);

}  // namespace

LeaderFeed::LeaderFeed(const LoaderSettings& settings, std::unique_ptr<PipelineFeed> engine,
                       std::shared_ptr<peers::Leader> leader, const PlanState& start, const Clock& clock)
    : settings_(settings), clock_(clock), engine_(std::move(engine)), leader_(std::move(leader)) {
  // The pool lives as long as a batch that the trainer holds, so it must not keep the leader alive.
  engine_->blocks().on_unmapped([weak = std::weak_ptr(leader_)](std::uint64_t block_id) {
    if (const auto there = weak.lock()) there->forget(block_id);
  });
  leader_->start(start, [this](std::int64_t step) { engine_->want_step(step); });
  thread_ = std::jthread([this](const std::stop_token& stop) {
    become_io_thread("stoker-feed");  // not behind the workers: it does little, and what it does is waited for
    run(stop);
  });
}

void LeaderFeed::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Status failed = leader_->failure();
    auto taken = failed.ok() ? engine_->take_within(kTick) : Result<std::optional<Item>>(std::move(failed));
    if (!taken.ok() && taken.status().code() == Code::kCancelled) return;
    Item* const item = taken.ok() && *taken ? &**taken : nullptr;
    const Status ends = !taken.ok() ? taken.status() : item != nullptr ? item->verdict : Status();
    const bool is_end = !ends.ok() || (item == nullptr && engine_->is_at_end());
    LeftOver left_over = is_end ? engine_->take_left_over() : LeftOver();
    if (is_end) {
      leader_->end(ends, item != nullptr ? item->delivery.bad : left_over.bad);
    } else if (item != nullptr) {
      leader_->publish(item->delivery);
    }
    MutexLock lock(mu_);
    engine_stall_ = item == nullptr ? engine_->stall() : std::nullopt;
    if (item != nullptr) {
      ready_.push_back(std::move(*item));
      ready_occupancy_.changed(static_cast<std::int64_t>(ready_.size()), clock_.now());
    }
    if (is_end) {
      left_over_ = std::move(left_over);
      ended_ = ends;
    }
    changed_.notify_all();
    if (is_end) return;
  }
}

Result<std::optional<Feed::Item>> LeaderFeed::take_within(std::chrono::milliseconds timeout) {
  have_all_joined_ = have_all_joined_ || leader_->all_joined_within(timeout);
  STOKER_CHECKED(leader_->failure());
  MutexLock lock(mu_);
  if (!have_all_joined_ && !is_stopped_ && !(ended_ && ready_.empty())) return std::optional<Item>();
  changed_.wait_for(lock, timeout, [this]() STOKER_NO_ANALYSIS { return is_stopped_ || ended_ || !ready_.empty(); });
  if (is_stopped_) return Status(Reason::kStopped, "the loader was closed");
  if (!ready_.empty()) {
    std::optional<Item> item(std::move(ready_.front()));
    ready_.pop_front();
    ready_occupancy_.changed(static_cast<std::int64_t>(ready_.size()), clock_.now());
    return item;
  }
  if (!ended_) return std::optional<Item>();
  if (!ended_->ok()) return *ended_;
  is_at_end_ = true;
  return std::optional<Item>();
}

Feed::LeftOver LeaderFeed::take_left_over() {
  MutexLock lock(mu_);
  if (!ended_ || !ready_.empty()) return {};
  return std::exchange(left_over_, {});
}

std::optional<Stall> LeaderFeed::stall() {
  const peers::PeerStats stats = leader_->stats();
  if (!have_all_joined_) {
    return Stall{
        fmt::format("peers {} of this rank have not come (peer_count is {}): the first batch is given out when "
                    "all are there; peer_rank and peer_count go over the processes of one node, and "
                    "topology.job must be the same in all",
                    stats.missing, settings_.peers.count),
        Reason::kPeerLost};
  }
  MutexLock lock(mu_);
  if (!engine_stall_ || !ready_.empty()) return std::nullopt;
  if (stats.n_unread == 0) return engine_stall_;
  return Stall{fmt::format("the next batch waits for memory, which another peer of this rank keeps: it has yet to take "
                           "{} batches that are ready for it",
                           stats.n_unread),
               Reason::kNone};
}

void LeaderFeed::stop() {
  MutexLock stopping(stop_mu_);
  {
    MutexLock lock(mu_);
    is_stopped_ = true;
    changed_.notify_all();
  }
  thread_.request_stop();
  engine_->stop();
  if (thread_.joinable()) thread_.join();
  leader_->close();
  std::deque<Item> dropped;
  MutexLock lock(mu_);
  dropped.swap(ready_);
}

std::optional<PipelineSnapshot> LeaderFeed::snapshot() const {
  auto out = engine_->snapshot();
  if (out) out->mean_ready_packs += static_cast<double>(ready_occupancy_.integral()) * 1e-9 / out->elapsed_s;
  return out;
}

std::optional<PeerReport> LeaderFeed::peers() const {
  const peers::PeerStats stats = leader_->stats();
  return PeerReport{0, settings_.peers.count, stats.n_joined, stats.n_left, stats.n_unread};
}

FollowerFeed::FollowerFeed(const LoaderSettings& settings, std::shared_ptr<peers::Follower> follower,
                           const PlanState& start)
    : settings_(settings), follower_(std::move(follower)) {
  follower_->start(start);
}

Result<std::optional<Feed::Item>> FollowerFeed::take_within(std::chrono::milliseconds timeout) {
  STOKER_TRY(std::optional<peers::Delivery> delivery, follower_->take_within(timeout));
  if (!delivery) return std::optional<Item>();
  return std::optional<Item>(Item{std::move(*delivery), {}, {}});
}

std::optional<PeerReport> FollowerFeed::peers() const {
  return PeerReport{settings_.peers.rank, settings_.peers.count, 0, 0, 0};
}

}  // namespace stoker
