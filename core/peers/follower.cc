#include "peers/follower.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "exec/cpu.h"

namespace stoker::peers {
namespace {

constexpr auto kAskEvery = std::chrono::milliseconds(50);
constexpr Nanos kRefusedLimit = std::chrono::seconds(60);  // another loader of the leader's process may be meant
constexpr int kPollMs = 1000;
constexpr int kPollUnsentMs = 5;

}  // namespace

// --- Channel

Channel::Channel(OwnedFd socket) : pid_(getpid()), socket_(std::move(socket)) {}

void Channel::send(const Message& message) {
  if (getpid() != pid_) return;
  MutexLock lock(mu_);
  unsent_.push_back(encode(message));
  if (!send_some()) waker_.wake();
}

bool Channel::flush() {
  MutexLock lock(mu_);
  return send_some();
}

bool Channel::send_some() {
  while (!unsent_.empty()) {
    const Sent sent = send_message(socket_, unsent_.front());
    if (sent == Sent::kNotNow) return false;
    if (sent == Sent::kGone) unsent_.clear();
    if (sent == Sent::kYes) unsent_.pop_front();
  }
  return true;
}

// --- what the engine asks

Follower::Follower(const Place& place, Nanos limit, const Clock& clock) : place_(place), limit_(limit), clock_(clock) {
  thread_ = std::jthread([this](const std::stop_token& stop) {
    become_io_thread("stoker-peer");
    run(stop);
  });
}

Result<std::optional<Welcome>> Follower::welcome_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  changed_.wait_for(lock, timeout, [this]() STOKER_NO_ANALYSIS { return welcome_ || ended_ || is_closed_; });
  if (welcome_) return welcome_;
  if (is_closed_) return Status(Reason::kStopped, "the loader was closed");
  if (ended_) return ended_->ok() ? Status(Reason::kInternal, "the data ended before it was open") : *ended_;
  return std::optional<Welcome>();
}

std::string Follower::progress() const {
  MutexLock lock(mu_);
  return progress_;
}

void Follower::start(const PlanState& state) {
  MutexLock lock(mu_);
  own_start_ = state;
  channel_->send(Start{state});
  compare_starts();
}

void Follower::want_step(std::int64_t step) {
  MutexLock lock(mu_);
  if (channel_) channel_->send(Want{step});
}

Result<std::optional<Delivery>> Follower::take_within(std::chrono::milliseconds timeout) {
  Waiting taken;
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(mu_);
    changed_.wait_for(lock, timeout, [this]() STOKER_NO_ANALYSIS {
      return is_closed_ || ended_ || (leaders_start_ && !ready_.empty());
    });
    if (is_closed_) return Status(Reason::kStopped, "the loader was closed");
    const bool is_elsewhere = ended_ && ended_->reason() == Reason::kState;  // nothing that came is ours
    if (ready_.empty() || is_elsewhere) {
      if (!ended_) return std::optional<Delivery>();
      if (!ended_->ok()) return *ended_;
      is_at_end_ = true;
      return std::optional<Delivery>();
    }
    taken = std::move(ready_.front());
    ready_.pop_front();
    channel = channel_;
  }
  channel->send(Taken{taken.sequence});
  return std::optional<Delivery>(std::move(taken.delivery));
}

bool Follower::is_at_end() const {
  MutexLock lock(mu_);
  return is_at_end_;
}

BadCounts Follower::take_left_over() {
  MutexLock lock(mu_);
  return ended_ && ready_.empty() ? std::exchange(left_over_, {}) : BadCounts();
}

void Follower::close() {
  MutexLock closing(close_mu_);
  {
    MutexLock lock(mu_);
    is_closed_ = true;
    changed_.notify_all();
  }
  if (!thread_.joinable()) return;
  thread_.request_stop();
  waker_.wake();
  thread_.join();
  std::deque<Waiting> dropped;  // given back after the farewell, outside of the lock
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(mu_);
    dropped.swap(ready_);
    channel = std::move(channel_);
    channel_ = nullptr;
  }
  if (channel) channel->send(Leave{n_received_});
}

// --- the thread

void Follower::run(const std::stop_token& stop) {
  if (meet(stop)) read_until_end(stop);
  blocks_.clear();
}

void Follower::end_with(Status status) {
  MutexLock lock(mu_);
  if (!ended_) ended_ = std::move(status);
  changed_.notify_all();
}

/// @return Whether this one was taken in.
bool Follower::meet(const std::stop_token& stop) {
  const Nanos began = clock_.now();
  std::string refusal, told;
  Nanos refused_at{0};  // since when without a break
  bool is_refused = false;
  while (!stop.stop_requested()) {
    Meeting met = ask(place_.name, refusal, stop);
    if (met == Meeting::kNobody) met = ask(place_.desk, refusal, stop);
    if (met == Meeting::kJoined) return true;
    if (met == Meeting::kRefused && refusal != told) {
      log(LogLevel::kWarning, refusal);
      told = refusal;
    }
    const Nanos now = clock_.now();
    if (met == Meeting::kNobody) {
      refusal.clear();
    } else if (!is_refused) {
      refused_at = now;
    }
    is_refused = met == Meeting::kRefused;
    if (is_refused ? now - refused_at >= std::min(limit_, kRefusedLimit) : now - began >= limit_) {
      end_with(refusal.empty()
                   ? Status(Reason::kPeerLost,
                            fmt::format("peer 0 of this node, which prepares the batches of its {} peers, did not come "
                                        "within {:.0f} s; peer_rank and peer_count go over the processes of one node, "
                                        "and topology.job must be the same in all",
                                        place_.count, to_seconds(limit_)))
                   : Status(Reason::kPeerMismatch, refusal));
      return false;
    }
    MutexLock lock(mu_);
    progress_ = refusal.empty()
                    ? fmt::format("peer {} waits for peer 0 of this node, which prepares the batches", place_.rank)
                    : "still waiting for peer 0: " + refusal;
    changed_.wait_for(lock, stop, kAskEvery, [this]() STOKER_NO_ANALYSIS { return is_closed_; });
  }
  return false;
}

Follower::Meeting Follower::ask(const std::string& name, std::string& refusal, const std::stop_token& stop) {
  auto connected = connect_to(name);
  if (!connected.ok()) {
    refusal = connected.status().message();
    return Meeting::kRefused;
  }
  if (!*connected) return Meeting::kNobody;
  auto channel = std::make_shared<Channel>(std::move(**connected));
  const auto who = process_at(channel->socket());
  if (!who || who->uid != geteuid()) {
    refusal = fmt::format("process {} of user {} holds the name of peer 0; this is user {}", who ? who->pid : 0,
                          who ? who->uid : 0, geteuid());
    return Meeting::kRefused;
  }
  channel->send(Hello{place_.rank, place_.settings});
  while (!stop.stop_requested()) {
    pollfd polled[] = {{channel->socket().get(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
    (void)poll(polled, 2, kPollMs);
    Received received = receive_message(channel->socket());
    if (received.what == Received::What::kNothing) continue;
    if (received.what == Received::What::kGone) return Meeting::kNobody;
    auto message = decode(received.bytes);
    if (!message.ok()) {
      refusal = message.status().message();
      return Meeting::kRefused;
    }
    if (const auto* refused = std::get_if<Refused>(&*message)) {
      refusal = refused->sentence;
      return Meeting::kRefused;
    }
    leader_pid_ = who->pid;
    watch_ = watch_process(who->pid);
    {
      MutexLock lock(mu_);
      channel_ = std::move(channel);
    }
    if (Status status = take_in(*message, received.file); !status.ok()) end_with(std::move(status));
    return Meeting::kJoined;
  }
  return Meeting::kNobody;
}

void Follower::read_until_end(const std::stop_token& stop) {
  std::shared_ptr<Channel> channel;
  {
    MutexLock lock(mu_);
    channel = channel_;
  }
  bool is_leader_there = true;
  while (!stop.stop_requested()) {
    const bool is_flushed = channel->flush();
    // What the leader said before its end is still there to be read; then its socket ends, unless a forked child of it
    // holds it open.
    pollfd polled[] = {{channel->socket().get(), POLLIN, 0},
                       {waker_.fd(), POLLIN, 0},
                       {channel->waker().fd(), POLLIN, 0},
                       {watch_.get(), POLLIN, 0}};
    (void)poll(polled, 4, is_flushed ? kPollMs : kPollUnsentMs);
    channel->waker().clear();
    is_leader_there = polled[3].revents == 0;
    for (;;) {
      Received received = receive_message(channel->socket());
      if (received.what == Received::What::kNothing) break;
      if (received.what == Received::What::kGone) {
        is_leader_there = false;
        break;
      }
      auto message = decode(received.bytes);
      Status status = message.ok() ? take_in(*message, received.file) : message.status();
      if (!status.ok()) return end_with(std::move(status));
      if (std::holds_alternative<End>(*message)) return;
    }
    if (!is_leader_there) {
      return end_with(Status(
          Reason::kPeerLost,
          fmt::format("peer 0 of this node (process {}), which prepared the batches, has ended; start all peers again "
                      "from the last state, and see its own output for the cause",
                      leader_pid_)));
    }
  }
}

Status Follower::take_in(Message& message, const OwnedFd& file) {
  if (auto* pack = std::get_if<Pack>(&message)) return take_in(*pack, file);
  if (const auto* forget = std::get_if<Forget>(&message)) {
    blocks_.erase(forget->block_id);
    return {};
  }
  MutexLock lock(mu_);
  if (auto* progress = std::get_if<Progress>(&message)) {
    progress_ = std::move(progress->line);
  } else if (auto* welcome = std::get_if<Welcome>(&message)) {
    welcome_ = std::move(*welcome);
    progress_.clear();
  } else if (auto* started = std::get_if<Started>(&message)) {
    leaders_start_ = std::move(started->state);
    compare_starts();
  } else if (auto* end = std::get_if<End>(&message)) {
    if (!ended_) {
      ended_ = std::move(end->status);
      left_over_ = std::move(end->bad);
    }
  } else {
    return Status(Reason::kPeerMismatch, "peer 0 sent what only its peers send");
  }
  changed_.notify_all();
  return {};
}

Status Follower::take_in(Pack& pack, const OwnedFd& file) {
  if (pack.sequence != n_received_++) return Status(Reason::kPeerMismatch, "peer 0 sent a pack out of turn");
  if (file.is_open()) {
    STOKER_TRY(SharedMemory attached, SharedMemory::attach(file, pack.block_bytes));
    blocks_[pack.block_id] = std::make_shared<SharedMemory>(std::move(attached));
  }
  const auto found = blocks_.find(pack.block_id);
  if (found == blocks_.end() || found->second->size() < pack.block_bytes) {
    return Status(Reason::kPeerMismatch, "peer 0 sent a pack without its memory");
  }
  MutexLock lock(mu_);
  pack.delivery.batch.block = std::shared_ptr<const Block>(
      new Block(found->second->data(), pack.block_bytes, pack.block_id),
      [memory = found->second, channel = channel_, sequence = pack.sequence](const Block* block) {
        delete block;
        channel->send(Released{sequence});
      });
  ready_.push_back({pack.sequence, std::move(pack.delivery)});
  changed_.notify_all();
  return {};
}

void Follower::compare_starts() {
  if (!own_start_ || !leaders_start_ || *own_start_ == *leaders_start_ || ended_) return;
  ended_ = Status(Reason::kState,
                  fmt::format("peer {} starts at step {}, peer 0 (process {}) at step {}: load the same state on every "
                              "peer",
                              place_.rank, own_start_->step, leader_pid_, leaders_start_->step));
  changed_.notify_all();
}

}  // namespace stoker::peers
