#include "pipeline/shared_measuring.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/mutex.h"
#include "exec/cpu.h"

namespace stoker {
namespace {

std::string name_of(const MeasureShare& share) { return fmt::format("lengths-{}-{}", share.first, share.n); }
std::string claim_of(const MeasureShare& share) { return fmt::format("claim-{}-{}", share.first, share.n); }

}  // namespace

std::vector<MeasureShare> shares_of(std::uint64_t n, std::int32_t n_ranks) {
  constexpr std::uint64_t kPerRank = 4, kLeast = 8, kMost = 256;
  const std::uint64_t ranks = static_cast<std::uint64_t>(std::max(1, n_ranks));
  const std::uint64_t size = std::clamp((n + ranks * kPerRank - 1) / (ranks * kPerRank), kLeast, kMost);
  std::vector<MeasureShare> out;
  for (std::uint64_t first = 0; first < n; first += size) out.push_back({first, std::min(size, n - first)});
  return out;
}

/// One window under way.
struct SharedMeasuring::Window {
  std::uint64_t window;
  const Measure& measure;
  const Take& take;
  std::stop_token stop;
  std::vector<MeasureShare> missing;  // this rank's own place first
  std::size_t batch;                  // shares that are measured at once
  Nanos waits_since;
  Nanos tell_after;
  std::map<std::uint64_t, std::string> holders = {};  // of missing shares, by their first place

  void got(const MeasureShare& share) { std::erase(missing, share); }
};

SharedMeasuring::SharedMeasuring(Exchange& exchange, SharingOptions options, const Clock& clock)
    : exchange_(exchange), options_(options), clock_(clock) {}

Status SharedMeasuring::window(std::uint64_t window, std::uint64_t n, const Measure& measure_shares, const Take& take,
                               std::stop_token stop) {
  std::vector<MeasureShare> shares = shares_of(n, options_.n_ranks);
  const std::size_t n_shares = shares.size();
  const auto ranks = static_cast<std::size_t>(options_.n_ranks);
  const std::size_t own = static_cast<std::size_t>(options_.rank) * n_shares / ranks;
  std::rotate(shares.begin(), shares.begin() + static_cast<std::ptrdiff_t>(own), shares.end());
  Window at{.window = window,
            .measure = measure_shares,
            .take = take,
            .stop = std::move(stop),
            .missing = std::move(shares),
            .batch = (n_shares + ranks - 1) / ranks,
            .waits_since = clock_.now(),
            .tell_after = options_.tell_after};
  while (!at.missing.empty()) {
    if (at.stop.stop_requested()) return Status(Reason::kStopped, "stopped while measuring");
    std::vector<MeasureShare> mine = at.missing;
    if (!is_alone()) {
      auto claimed = claim(at, at.batch);
      if (!claimed.ok()) {
        if (!goes_on_alone(claimed.status())) return std::move(claimed).status();
        continue;
      }
      mine = std::move(*claimed);
    }
    if (!mine.empty()) {
      STOKER_CHECKED(measure(at, mine, !is_alone()));
      at.batch = std::max<std::size_t>(1, at.batch / 2);  // of other ranks' places, in smaller pieces
      at.waits_since = clock_.now();
    } else if (!at.missing.empty()) {
      if (Status status = wait(at); !status.ok() && !goes_on_alone(status)) return status;
    }
  }
  return {};
}

Result<std::vector<MeasureShare>> SharedMeasuring::claim(Window& at, std::size_t most) {
  std::vector<MeasureShare> mine;
  const std::vector<MeasureShare> missing = at.missing;
  std::int64_t n_silent = 0;
  std::uint64_t first_silent = 0;
  for (const MeasureShare& share : missing) {
    if (mine.size() == most) break;
    STOKER_TRY(const Claimed claim, exchange_.claim(at.window, claim_of(share), options_.lease, at.stop));
    if (!claim.is_mine) {
      at.holders[share.first] = claim.holder;
      continue;
    }
    // Whoever held it before may have been done, in another attempt or just now.
    STOKER_TRY(auto told, exchange_.get(at.window, name_of(share), at.stop));
    if (told && at.take(share, std::move(*told), false)) {
      at.got(share);
      continue;
    }
    if (claim.is_taken_over && n_silent++ == 0) first_silent = share.first;
    mine.push_back(share);
  }
  n_taken_over_ += n_silent;
  if (n_silent > 0) {
    log(LogLevel::kWarning, fmt::format("window {}: {} of {} shares are measured here too, the first at place {}: who "
                                        "had claimed them is silent, or has been at it for too long",
                                        at.window, n_silent, missing.size(), first_silent));
  }
  return mine;
}

Status SharedMeasuring::measure(Window& at, const std::vector<MeasureShare>& shares, bool is_claimed) {
  std::stop_source enough;
  const std::stop_callback ends_too(at.stop, [&] { enough.request_stop(); });
  auto values = [&] {
    std::jthread keeper;  // ends before `enough` goes
    if (is_claimed) {
      keeper = std::jthread([&](std::stop_token done) { keep(at, shares, enough, std::move(done)); });
    }
    return at.measure(shares, enough.get_token());
  }();
  if (!values.ok()) {
    const bool were_others_first = values.status().code() == Code::kCancelled && !at.stop.stop_requested();
    if (!were_others_first) return std::move(values).status();
    return {};
  }
  if (values->size() != shares.size()) return Status(Reason::kInternal, "a share was measured without a value");
  for (std::size_t i = 0; i < shares.size(); ++i) STOKER_CHECKED(put(at, shares[i], std::move((*values)[i])));
  return {};
}

Status SharedMeasuring::put(Window& at, const MeasureShare& share, std::string value) {
  if (!is_alone()) {
    auto there = exchange_.put(at.window, name_of(share), value, at.stop);
    if (!there.ok() && !goes_on_alone(there.status())) return std::move(there).status();
    if (there.ok() && *there != value && at.take(share, std::move(*there), false)) {  // another was first
      at.got(share);
      return {};
    }
  }
  at.take(share, std::move(value), true);
  at.got(share);
  return {};
}

void SharedMeasuring::keep(const Window& at, const std::vector<MeasureShare>& shares, std::stop_source& enough,
                           std::stop_token done) {
  become_background_thread("stoker-claims");
  Mutex mu;
  std::condition_variable_any never;
  const Nanos began = clock_.now();
  const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease) / 3;
  while (!done.stop_requested()) {
    {
      MutexLock lock(mu);
      never.wait_for(lock, done, pause, [] { return false; });
    }
    const bool is_held = clock_.now() - began < options_.most_held;
    std::size_t n_told = 0;
    for (const MeasureShare& share : shares) {
      const auto renewed = is_held ? exchange_.renew(at.window, claim_of(share), done) : Result<bool>(false);
      if (!renewed.ok()) return;
      if (*renewed) continue;
      const auto told = exchange_.get(at.window, name_of(share), done);  // who took it over may be done
      if (!told.ok()) return;
      n_told += told->has_value() ? 1 : 0;
    }
    if (n_told == shares.size()) enough.request_stop();
  }
}

Status SharedMeasuring::wait(Window& at) {
  for (;;) {
    const MeasureShare share = at.missing.front();
    STOKER_TRY(auto told, exchange_.wait(at.window, name_of(share), options_.look_every, at.stop));
    if (told) {
      if (!at.take(share, std::move(*told), false)) return measure(at, {share}, false);
      at.got(share);
      at.waits_since = clock_.now();
      if (at.missing.empty()) return {};
      continue;
    }
    tell_of_waiting(at);
    return {};
  }
}

void SharedMeasuring::tell_of_waiting(Window& at) {
  const Nanos waited = clock_.now() - at.waits_since;
  if (waited < at.tell_after) return;
  at.tell_after *= 2;
  const MeasureShare& share = at.missing.front();
  const std::string& holder = at.holders[share.first];
  log(LogLevel::kWarning,
      fmt::format("window {}: waiting for {} of its shares for {:.0f} s; places {} to {} are being measured by {}: is "
                  "its storage slow?",
                  at.window, at.missing.size(), to_seconds(waited), share.first, share.first + share.n - 1,
                  holder.empty() ? "another rank" : holder));
}

bool SharedMeasuring::goes_on_alone(const Status& status) {
  if (status.reason() != Reason::kFetchConnect) return false;
  if (!alone_until_) {
    log(LogLevel::kWarning, fmt::format("ranks cannot share what they measure any more: {}. This one measures for "
                                        "itself, and its plans are not compared; it asks again every {:.0f} s",
                                        status.message(), to_seconds(options_.alone_for)));
  }
  alone_until_ = clock_.now() + options_.alone_for;
  return true;
}

}  // namespace stoker
