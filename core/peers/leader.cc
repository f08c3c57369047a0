#include "peers/leader.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "exec/cpu.h"

namespace stoker::peers {
namespace {

constexpr auto kBindEvery = std::chrono::milliseconds(100);
constexpr auto kHelloLimit = std::chrono::seconds(10);
constexpr auto kFlushLimit = std::chrono::milliseconds(500);
constexpr std::size_t kMaxVisitors = 64;
constexpr int kPollMs = 1000;
constexpr int kPollFullMs = 5;  // while a socket is full, or too many files are on their way

/// Who holds a name, for people.
std::string holder_of(const std::string& name) {
  if (auto s = connect_to(name); s.ok() && *s) {
    if (const auto who = process_at(**s)) return fmt::format("process {} of user {}", who->pid, who->uid);
  }
  return "a process";
}

}  // namespace

Result<std::unique_ptr<Leader>> Leader::listen(const Place& place, Nanos limit, const Say& say,
                                               const std::stop_token& stop, const Clock& clock) {
  const Nanos began = clock.now();
  Mutex mu;
  std::condition_variable_any never;
  for (;;) {
    auto listener = listen_at(place.name);
    if (!listener.ok()) return std::move(listener).status();
    if (*listener) {
      auto desk = listen_at(place.desk);
      if (!desk.ok()) return std::move(desk).status();
      return std::unique_ptr<Leader>(new Leader(place, *std::move(*listener), std::move(*desk), clock));
    }
    const std::string sentence = fmt::format(
        "{} prepares the same batches for the same peers (another loader that is still open, or an earlier attempt)",
        holder_of(place.name));
    say("waiting for a name: " + sentence);
    if (clock.now() - began >= limit) {
      return Status(Reason::kPeerMismatch, sentence + "; close it, or give topology.job another value");
    }
    MutexLock lock(mu);
    never.wait_for(lock, stop, kBindEvery, [] { return false; });
    if (stop.stop_requested()) return Status(Reason::kStopped, "the loader was closed");
  }
}

Leader::Leader(const Place& place, OwnedFd listener, std::optional<OwnedFd> desk, const Clock& clock)
    : place_(place), clock_(clock), listener_(std::move(listener)), desk_(std::move(desk)) {
  {
    MutexLock lock(mu_);
    peers_.resize(static_cast<std::size_t>(place_.count));
  }
  thread_ = std::jthread([this](const std::stop_token& stop) {
    become_io_thread("stoker-peers");
    run(stop);
  });
}

// --- what the engine says

void Leader::post(std::shared_ptr<const Outgoing> outgoing) {
  for (std::size_t k = 1; k < peers_.size(); ++k) {
    if (!peers_[k].has_left) peers_[k].outbox.push_back(outgoing);
  }
  waker_.wake();
}

void Leader::post(const Message& message) { post(std::make_shared<Outgoing>(Outgoing{encode(message), nullptr, 0})); }

void Leader::tell(std::string_view line) {
  const auto told = std::make_shared<Outgoing>(Outgoing{encode(Progress{std::string(line)}), nullptr, 0});
  MutexLock lock(mu_);
  for (Peer& peer : peers_) {
    if (peer.has_joined && !peer.has_left) peer.outbox.push_back(told);
  }
  waker_.wake();
}

void Leader::welcome(Welcome welcome) {
  MutexLock lock(mu_);
  post(std::move(welcome));
}

void Leader::start(const PlanState& state, Wanted wanted) {
  std::int64_t step = -1;
  {
    MutexLock lock(mu_);
    started_ = state;
    wanted_ = wanted;
    step = last_wanted_;
    post(Started{state});
    for (const auto& [rank, theirs] : early_starts_) compare_start(rank, theirs);
  }
  if (step >= 0) wanted(step);
}

void Leader::publish(const Delivery& delivery) {
  MutexLock lock(mu_);
  if (is_ended_) return;
  const std::shared_ptr<const Block>& block = delivery.batch.block;
  Pack pack{.sequence = n_published_++, .block_id = block->id(), .block_bytes = block->size(), .delivery = delivery};
  pack.delivery.batch.block = nullptr;
  const std::uint64_t sequence = pack.sequence;
  post(std::make_shared<Outgoing>(Outgoing{encode(std::move(pack)), block, sequence}));
}

void Leader::end(const Status& status, BadCounts bad) {
  MutexLock lock(mu_);
  if (std::exchange(is_ended_, true)) return;
  post(End{status, std::move(bad)});
}

void Leader::forget(std::uint64_t block_id) {
  const auto told = std::make_shared<Outgoing>(Outgoing{encode(Forget{block_id}), nullptr, 0});
  MutexLock lock(mu_);
  for (Peer& peer : peers_) {
    if (peer.known_blocks.erase(block_id) > 0 && !peer.has_left) peer.outbox.push_back(told);
  }
  waker_.wake();
}

bool Leader::all_joined_within(std::chrono::milliseconds timeout) {
  MutexLock lock(mu_);
  return joined_.wait_for(lock, timeout,
                          [this]() STOKER_NO_ANALYSIS { return n_joined_ == place_.count - 1 || !failure_.ok(); });
}

Status Leader::failure() const {
  MutexLock lock(mu_);
  return failure_;
}

PeerStats Leader::stats() const {
  MutexLock lock(mu_);
  PeerStats out{.n_joined = n_joined_, .n_left = 0, .n_unread = 0, .missing = ""};
  for (std::size_t k = 1; k < peers_.size(); ++k) {
    const Peer& peer = peers_[k];
    if (!peer.has_joined) out.missing += fmt::format("{}{}", out.missing.empty() ? "" : ", ", k);
    if (peer.has_left) {
      ++out.n_left;
    } else {
      out.n_unread = std::max(out.n_unread, static_cast<std::int64_t>(n_published_ - peer.n_taken));
    }
  }
  return out;
}

void Leader::close() {
  MutexLock closing(close_mu_);
  if (!thread_.joinable()) return;
  end(Status(
      Reason::kPeerLost,
      fmt::format("peer 0 (process {}), which prepares the batches for this process, closed its loader", getpid())));
  thread_.request_stop();
  waker_.wake();
  thread_.join();
  std::vector<Peer> dropped;
  MutexLock lock(mu_);
  dropped.swap(peers_);
}

// --- what the peers say

void Leader::run(const std::stop_token& stop) {
  std::optional<Nanos> stop_began;
  std::vector<pollfd> polled;
  for (;;) {
    flush();
    polled.clear();
    polled.push_back({waker_.fd(), POLLIN, 0});
    const bool is_open = visitors_.size() < kMaxVisitors;
    polled.push_back({is_open ? listener_.get() : -1, POLLIN, 0});
    polled.push_back({is_open && desk_ ? desk_->get() : -1, POLLIN, 0});
    const std::size_t first_visitor = polled.size();
    for (const Visitor& visitor : visitors_) polled.push_back({visitor.socket.get(), POLLIN, 0});
    const std::size_t first_peer = polled.size();
    bool is_unsent = false;
    {
      MutexLock lock(mu_);
      for (const Peer& peer : peers_) {  // two entries each; closed files are passed over
        const bool has_mail = peer.socket.is_open() && !peer.outbox.empty();
        is_unsent = is_unsent || has_mail;
        polled.push_back({peer.socket.get(), POLLIN, 0});
        polled.push_back({peer.watch.get(), POLLIN, 0});
      }
    }
    if (stop.stop_requested()) {
      if (!stop_began) stop_began = clock_.now();
      if (!is_unsent || clock_.now() - *stop_began >= kFlushLimit) return;
    }
    (void)poll(polled.data(), polled.size(), is_unsent || stop.stop_requested() ? kPollFullMs : kPollMs);
    waker_.clear();
    const auto is_ready = [&polled](std::size_t i) { return polled[i].revents != 0; };
    for (std::size_t k = 1; first_peer + 2 * k < polled.size(); ++k) {
      if (is_ready(first_peer + 2 * k)) read(k);
      if (is_ready(first_peer + 2 * k + 1)) lose(k);
    }
    const Nanos now = clock_.now();
    std::size_t i = first_visitor;
    std::erase_if(visitors_, [&](Visitor& visitor) {
      const bool is_heard = is_ready(i++) && hear(visitor);
      return is_heard || now - visitor.since >= kHelloLimit;
    });
    if (is_ready(1)) accept_visitors(listener_);
    if (is_ready(2)) accept_visitors(*desk_);
  }
}

void Leader::accept_visitors(const OwnedFd& listener) {
  while (visitors_.size() < kMaxVisitors) {
    auto socket = accept_from(listener);
    if (!socket) return;
    const auto who = process_at(*socket);
    if (!who || who->uid != geteuid()) {
      const std::string sentence = fmt::format("process {} of user {} asked for the batches of user {} and was refused",
                                               who ? who->pid : 0, who ? who->uid : 0, geteuid());
      (void)send_message(*socket, encode(Refused{sentence}));
      log(LogLevel::kWarning, sentence);
      continue;
    }
    visitors_.push_back({std::move(*socket), who->pid, clock_.now()});
  }
}

/// @return Whether the visitor is done with: it joined, was refused, or went.
bool Leader::hear(Visitor& visitor) {
  const Received received = receive_message(visitor.socket);
  if (received.what == Received::What::kNothing) return false;
  if (received.what == Received::What::kGone) return true;
  const auto message = decode(received.bytes);
  const auto* hello = message.ok() ? std::get_if<Hello>(&*message) : nullptr;
  const std::string refusal = hello != nullptr ? join(*hello, visitor)
                              : message.ok()   ? "the first message of a peer was not its name"
                                               : message.status().message();
  if (!refusal.empty()) {
    (void)send_message(visitor.socket,
                       encode(Refused{fmt::format("process {} refused this one: {}", getpid(), refusal)}));
  }
  return true;
}

/// @return Why not; empty if it is in.
std::string Leader::join(const Hello& hello, Visitor& visitor) {
  if (const std::string name = place_.differing(hello.settings, place_.settings); !name.empty()) {
    return fmt::format(
        "`{}` is not the same on peer {} (process {}) and on peer 0 (process {}); peers of one "
        "data-parallel rank need equal settings",
        name, hello.rank, visitor.pid, getpid());
  }
  if (hello.rank < 1 || hello.rank >= place_.count) {
    return fmt::format("peer_rank {} of process {} is not in [1, peer_count = {})", hello.rank, visitor.pid,
                       place_.count);
  }
  MutexLock lock(mu_);
  const auto rank = static_cast<std::size_t>(hello.rank);
  Peer& peer = peers_[rank];
  if (peer.has_left) {
    return fmt::format("peer {} was here (process {}) and has left: peers start together, from one state", rank,
                       peer.pid);
  }
  if (peer.has_joined) {
    return fmt::format("peer {} is here already (process {}): each process of a node needs its own peer_rank", rank,
                       peer.pid);
  }
  peer.has_joined = true;
  peer.pid = visitor.pid;
  peer.watch = watch_process(visitor.pid);
  peer.socket = std::move(visitor.socket);
  peer.outbox.push_front(std::make_shared<Outgoing>(Outgoing{encode(Progress{"peer 0 opens model and data"}), {}, 0}));
  ++n_joined_;
  joined_.notify_all();
  return "";
}

void Leader::read(std::size_t rank) {
  Dropped dropped;
  std::optional<std::int64_t> step;
  Wanted wanted;
  bool is_gone = false;
  {
    MutexLock lock(mu_);
    while (!is_gone && peers_[rank].socket.is_open()) {
      const Received received = receive_message(peers_[rank].socket);
      if (received.what == Received::What::kNothing) break;
      const auto message = received.what == Received::What::kMessage ? decode(received.bytes)
                                                                     : Result<Message>(Status(Reason::kPeerLost, ""));
      is_gone = !message.ok() || !take_in(rank, *message, dropped, step);
    }
    wanted = wanted_;
    if (step) last_wanted_ = std::max(last_wanted_, *step);
  }
  dropped.clear();
  if (step && wanted) wanted(*step);
  if (is_gone) lose(rank);
}

/// @return Whether it was a message that a peer may send.
bool Leader::take_in(std::size_t rank, const Message& message, Dropped& dropped, std::optional<std::int64_t>& wanted) {
  Peer& peer = peers_[rank];
  if (const auto* want = std::get_if<Want>(&message)) {
    wanted = std::max(wanted.value_or(want->step), want->step);
  } else if (const auto* taken = std::get_if<Taken>(&message)) {
    if (taken->sequence >= n_published_) return false;
    peer.n_taken = std::max(peer.n_taken, taken->sequence + 1);
  } else if (const auto* released = std::get_if<Released>(&message)) {
    const auto found = peer.held.find(released->sequence);
    if (found == peer.held.end()) return false;
    dropped.push_back(std::move(found->second));
    peer.held.erase(found);
  } else if (const auto* start = std::get_if<Start>(&message)) {
    if (started_) {
      compare_start(rank, start->state);
    } else {
      early_starts_.emplace(rank, start->state);
    }
  } else if (const auto* leave = std::get_if<Leave>(&message)) {
    peer.has_left = true;  // its socket stays until the last array there is gone
    const auto unseen = peer.held.lower_bound(leave->n_received);
    for (auto it = unseen; it != peer.held.end(); ++it) dropped.push_back(std::move(it->second));
    peer.held.erase(unseen, peer.held.end());
    for (const auto& outgoing : peer.outbox) dropped.push_back(outgoing->block);
    peer.outbox.clear();
  } else {
    return false;
  }
  return true;
}

void Leader::compare_start(std::size_t rank, const PlanState& state) {
  if (!failure_.ok() || *started_ == state) return;
  failure_ = Status(Reason::kState,
                    fmt::format("peer {} (process {}) starts at step {}, peer 0 (process {}) at step {}: load the same "
                                "state on every peer",
                                rank, peers_[rank].pid, state.step, getpid(), started_->step));
  joined_.notify_all();
}

/// A peer's process or connection ended: what it held goes back.
void Leader::lose(std::size_t rank) {
  Peer lost;
  bool is_news = false;
  {
    MutexLock lock(mu_);
    Peer& peer = peers_[rank];
    if (!peer.socket.is_open()) return;
    is_news = !peer.has_left && !is_ended_;
    lost.socket = std::move(peer.socket);
    lost.watch = std::move(peer.watch);
    lost.pid = peer.pid;
    lost.outbox.swap(peer.outbox);
    lost.held.swap(peer.held);
    peer.known_blocks.clear();
    peer.has_left = true;
  }
  if (is_news) {
    log(LogLevel::kWarning, fmt::format("peer {} of this rank (process {}) has ended; its batches are given up and the "
                                        "others go on",
                                        rank, lost.pid));
  }
}

void Leader::flush() {
  std::vector<std::size_t> gone;
  {
    MutexLock lock(mu_);
    for (std::size_t k = 1; k < peers_.size(); ++k) {
      Peer& peer = peers_[k];
      while (peer.socket.is_open() && !peer.outbox.empty()) {
        const Outgoing& next = *peer.outbox.front();
        const bool is_new = next.block && !peer.known_blocks.contains(next.block->id());
        const Sent sent = send_message(peer.socket, next.bytes, is_new ? next.block->fd() : -1);
        if (sent == Sent::kNotNow) break;
        if (sent == Sent::kGone) {
          gone.push_back(k);
          break;
        }
        if (next.block) {
          peer.known_blocks.insert(next.block->id());
          peer.held.emplace(next.sequence, next.block);
        }
        peer.outbox.pop_front();
      }
    }
  }
  for (const std::size_t k : gone) lose(k);
}

}  // namespace stoker::peers
