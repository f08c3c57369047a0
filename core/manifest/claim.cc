#include "manifest/claim.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/rng.h"

namespace stoker {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Unique among processes of several nodes and threads of one process.
std::string new_token() {
  static std::atomic<std::uint64_t> n_made{0};
  const auto now = static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const auto pid = static_cast<std::uint64_t>(::getpid());
  return fmt::format("{:016x}{:016x}", mix64(now ^ (pid << 40)), mix64(now + pid) ^ ++n_made);
}

// All of a claim's file: "TOKEN beats done all", blanks up to a fixed length, LF. Empty: there is none. A file that
// cannot be read, or is not written yet, is "?".
std::string look(const std::string& path) {
  constexpr std::size_t kMost = 256;
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return errno == ENOENT ? std::string() : "?";
  std::string text(kMost, '\0');
  const auto n_read = read_at(file, text.data(), text.size(), 0);
  text.resize(n_read.ok() ? *n_read : 0);
  return text.empty() ? "?" : text;
}

std::string_view token_of(std::string_view text) { return text.substr(0, text.find(' ')); }

// The last two numbers, if it has them.
std::pair<std::uint64_t, std::uint64_t> progress_of(std::string_view text) {
  std::uint64_t numbers[3] = {0, 0, 0};
  text.remove_prefix(token_of(text).size());
  for (std::uint64_t& number : numbers) {
    const std::size_t digit = text.find_first_not_of(' ');
    if (digit == std::string_view::npos) break;
    text.remove_prefix(digit);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc()) break;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return {numbers[1], numbers[2]};
}

// Takes the file away if it still is what a dead holder left.
void bury(const std::string& path, const std::string& text, const std::string& token) {
  // One of several who come to this gets the file; renaming tells them apart.
  const std::string grave = path + "." + token;
  if (::rename(path.c_str(), grave.c_str()) != 0) return;
  // Another one was faster, and this is its own new claim: back with it.
  if (look(grave) != text) (void)::link(grave.c_str(), path.c_str());
  ::unlink(grave.c_str());
}

// False: stopped.
bool pause(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::condition_variable_any none;
  Mutex mu;
  MutexLock lock(mu);
  none.wait_for(lock, stop, time, [] { return false; });
  return !stop.stop_requested();
}

}  // namespace

Result<std::unique_ptr<Claim>> Claim::take(
    const std::string& path, const std::function<bool()>& is_done,
    const std::function<void(std::uint64_t n_done, std::uint64_t n_all)>& on_wait, const std::stop_token& stop,
    const ClaimTimes& times) {
  std::string seen;
  SteadyClock::time_point since;
  const std::string token = new_token();
  while (true) {
    if (is_done()) return std::unique_ptr<Claim>();
    FileHandle file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (file.is_open()) {
      std::unique_ptr<Claim> claim(new Claim(path, std::move(file), token, times.beat));
      // Whoever had it before may have ended between the two looks.
      if (is_done()) return std::unique_ptr<Claim>();
      return claim;
    }
    if (errno != EEXIST) return Status(Reason::kIndexDir, fmt::format("cannot make {}: {}", path, errno_text()));
    std::string now = look(path);
    if (now != seen) {
      seen = std::move(now);
      since = SteadyClock::now();
    } else if (SteadyClock::now() - since >= times.lease) {
      bury(path, seen, token);
      seen.clear();
      continue;
    }
    if (on_wait) {
      if (const auto [n_done, n_all] = progress_of(seen); n_all > 0) on_wait(n_done, n_all);
    }
    if (!pause(times.look, stop)) {
      return Status(Reason::kStopped, path + ": stopped while another process did the work");
    }
  }
}

Claim::Claim(std::string path, FileHandle file, std::string token, std::chrono::milliseconds beat)
    : path_(std::move(path)), file_(std::move(file)), token_(std::move(token)) {
  write(0);
  beating_ = std::jthread([this, beat](const std::stop_token& stop) {
    for (std::uint64_t n = 1; pause(beat, stop); ++n) write(n);
  });
}

Claim::~Claim() {
  beating_ = {};
  if (token_of(look(path_)) == token_) ::unlink(path_.c_str());
}

void Claim::write(std::uint64_t n_beats) {
  std::string text;
  {
    MutexLock lock(mu_);
    text = fmt::format("{} {} {} {}", token_, n_beats, n_done_, n_all_);
  }
  text = fmt::format("{:<127}\n", text);
  // Nothing to do about a failure: the claim is then taken over. Flushed, so that other nodes see it, but only where it
  // is held for long: that there is a claim they see all the same.
  if (::pwrite(file_.get(), text.data(), text.size(), 0) > 0 && n_beats > 0) (void)::fdatasync(file_.get());
}

void Claim::tell(std::uint64_t n_done, std::uint64_t n_all) {
  MutexLock lock(mu_);
  n_done_ = n_done;
  n_all_ = n_all;
}

}  // namespace stoker
