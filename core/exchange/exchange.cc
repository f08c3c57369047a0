#include "exchange/exchange.h"

#include <fmt/format.h>

#include <random>
#include <utility>

namespace stoker {
namespace {

// "rank 1 of 8#f00d 17": who, which of equal names, and a number that grows with each renewal.
std::string holder_of(const std::string& value) { return value.substr(0, value.find('#')); }

Status check_value(const std::string& value) {
  if (!value.empty() && value.size() <= ValueStore::kMostValueBytes) return {};
  return Status(Reason::kInternal, fmt::format("a value of {} bytes for the exchange", value.size()));
}

}  // namespace

std::string random_bytes(std::size_t n_bytes) {
  std::random_device device;
  std::string out;
  while (out.size() < n_bytes) out.push_back(static_cast<char>(device()));
  return out;
}

std::string random_hex(std::size_t n_bytes) {
  std::string out;
  for (const char c : random_bytes(n_bytes)) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

Exchange::Exchange(std::unique_ptr<ValueStore> store, std::string space, const std::string& owner, const Clock& clock)
    : store_(std::move(store)),
      space_(std::move(space)),
      owner_(fmt::format("{}#{}", owner.substr(0, 100), random_hex(8))),
      clock_(clock) {}

Result<std::string> Exchange::put(std::uint64_t window, const std::string& name, const std::string& value,
                                  std::stop_token stop) {
  STOKER_CHECKED(check_value(value));
  return store_->compare_set({space_, window, name}, "", value, std::move(stop));
}

Result<std::optional<std::string>> Exchange::wait(std::uint64_t window, const std::string& name,
                                                  std::chrono::milliseconds timeout, std::stop_token stop) {
  return store_->get({space_, window, name}, timeout, std::move(stop));
}

Result<std::string> Exchange::put_in(const std::string& space, const std::string& name, const std::string& value,
                                     std::stop_token stop) {
  STOKER_CHECKED(check_value(value));
  return store_->compare_set({space, StoreKey::kKept, name}, "", value, std::move(stop));
}

Result<std::optional<std::string>> Exchange::wait_in(const std::string& space, const std::string& name,
                                                     std::chrono::milliseconds timeout, std::stop_token stop) {
  return store_->get({space, StoreKey::kKept, name}, timeout, std::move(stop));
}

std::string Exchange::next_value() {
  MutexLock lock(mu_);
  return fmt::format("{} {}", owner_, ++n_values_);
}

Result<Claimed> Exchange::claim(std::uint64_t window, const std::string& name, Nanos lease, std::stop_token stop) {
  const ClaimKey key(window, name);
  const std::string value = next_value();
  const auto mine = [&](bool is_taken_over) {
    MutexLock lock(mu_);
    mine_[key] = value;
    seen_.erase(key);
    return Claimed{.is_mine = true, .holder = "", .is_taken_over = is_taken_over};
  };
  STOKER_TRY(std::string there, store_->compare_set({space_, window, name}, "", value, stop));
  if (there == value) return mine(false);
  bool is_silent = false;
  {
    MutexLock lock(mu_);
    const auto own = mine_.find(key);
    if (own != mine_.end() && own->second == there) return Claimed{.is_mine = true, .holder = ""};
    Seen& seen = seen_[key];
    if (seen.value != there) seen = {there, clock_.now()};
    is_silent = clock_.now() - seen.since >= lease;
  }
  if (is_silent) {
    STOKER_TRY(const std::string now, store_->compare_set({space_, window, name}, there, value, stop));
    if (now == value) return mine(true);
    there = now;
  }
  return Claimed{.is_mine = false, .holder = holder_of(there)};
}

Result<bool> Exchange::renew(std::uint64_t window, const std::string& name, std::stop_token stop) {
  const ClaimKey key(window, name);
  const std::string value = next_value();
  std::string old;
  {
    MutexLock lock(mu_);
    const auto own = mine_.find(key);
    if (own == mine_.end()) return false;
    old = own->second;
  }
  STOKER_TRY(const std::string now, store_->compare_set({space_, window, name}, old, value, std::move(stop)));
  MutexLock lock(mu_);
  if (now == value) {
    mine_[key] = value;
    return true;
  }
  mine_.erase(key);
  return false;
}

Status Exchange::drop_before(std::uint64_t window, std::stop_token stop) {
  {
    MutexLock lock(mu_);
    mine_.erase(mine_.begin(), mine_.lower_bound({window, ""}));
    seen_.erase(seen_.begin(), seen_.lower_bound({window, ""}));
  }
  return store_->drop_before(space_, window, std::move(stop));
}

}  // namespace stoker
