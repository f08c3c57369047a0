#include "source/cache/disk_cache.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <list>
#include <random>
#include <unordered_map>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/log.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint64_t kBlock = 4096;

class Folder {
 public:
  Folder() {
    // In memory where there is such a folder: thousands of small files are made here.
    const std::string_view root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    std::string name = fmt::format("{}/stoker-cache-XXXXXX", root);
    path_ = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string inside(const std::string& name) const { return path_ + "/stoker-objects-1/" + name; }
  /// The entries' files, sorted.
  std::vector<std::string> entries() const {
    std::vector<std::string> found;
    for (const auto& one : fs::recursive_directory_iterator(path_)) {
      if (one.is_regular_file() && one.path().filename().string().size() == 62) found.push_back(one.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::size_t n_temporary() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(inside("tmp")), {}));
  }
  /// Disk that everything in it takes, whole blocks.
  std::uint64_t footprint() const {
    std::uint64_t sum = 0;
    for (const auto& one : fs::recursive_directory_iterator(path_)) {
      std::error_code gone;
      if (!one.is_regular_file(gone) || one.path().filename().string().size() < 10) continue;  // not users, totals
      const std::uint64_t size = one.file_size(gone);
      if (!gone) sum += CacheFolder::footprint(size);
    }
    return sum;
  }

 private:
  std::string path_;
};

class Warnings {
 public:
  Warnings() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      const MutexLock lock(mu_);
      if (level >= LogLevel::kWarning) lines_.emplace_back(line);
    });
  }
  ~Warnings() { set_log_sink({}); }
  std::vector<std::string> lines() const {
    const MutexLock lock(mu_);
    return lines_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> lines_;
};

std::unique_ptr<DiskCache> open(const Folder& folder, std::uint64_t limit, bool is_validated = true,
                                const Clock& clock = Clock::real()) {
  auto cache = DiskCache::open({.dir = folder.path(), .limit_bytes = limit, .is_validated = is_validated}, clock);
  EXPECT_TRUE(cache.ok()) << cache.status().to_string();
  return std::move(cache).value();
}

CacheKey key_of(int i) { return CacheKey::of("store", fmt::format("s3://b/{}", i)); }

FetchedObject object_of(int i, std::size_t size, std::string etag = "\"tag\"") {
  FetchedObject object;
  object.bytes = Buffer(size);
  std::mt19937 random(static_cast<unsigned>(i));
  for (std::byte& b : object.bytes.writable()) b = static_cast<std::byte>(random());
  object.total_bytes = size;
  object.etag = std::move(etag);
  return object;
}

bool is_same(const FetchedObject& a, const FetchedObject& b) {
  return std::ranges::equal(a.bytes.bytes(), b.bytes.bytes()) && a.etag == b.etag && a.total_bytes == b.total_bytes;
}

void put(DiskCache& cache, int i, std::size_t size, std::string etag = "\"tag\"") {
  cache.offer(key_of(i), object_of(i, size, std::move(etag)));
  cache.drain();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// What a cache that evicts the least recently used object would have hit.
class Lru {
 public:
  explicit Lru(std::size_t n) : n_(n) {}
  bool look_up(int i) {
    const auto found = at_.find(i);
    const bool is_hit = found != at_.end();
    if (is_hit) order_.erase(found->second);
    order_.push_front(i);
    at_[i] = order_.begin();
    if (order_.size() > n_) {
      at_.erase(order_.back());
      order_.pop_back();
    }
    return is_hit;
  }

 private:
  const std::size_t n_;
  std::list<int> order_;
  std::unordered_map<int, std::list<int>::iterator> at_;
};

TEST(DiskCache, GivesBackWhatWasKeptAndAnyPartOfIt) {
  const Folder folder;
  auto cache = open(folder, 1 << 20);
  const FetchedObject whole = object_of(1, 5000);
  EXPECT_FALSE(cache->read(key_of(1), {}));
  put(*cache, 1, 5000);
  const auto again = cache->read(key_of(1), {});
  ASSERT_TRUE(again);
  EXPECT_TRUE(is_same(*again, whole));
  EXPECT_FALSE(cache->read(key_of(2), {}));
  struct Case {
    std::uint64_t offset;
    std::optional<std::uint64_t> length;
  };
  for (const Case& c :
       std::vector<Case>{{0, 10}, {4990, 100}, {5, {}}, {5000, 5}, {UINT64_MAX, {}}, {0, 0}, {1, UINT64_MAX}}) {
    const auto part = cache->read(key_of(1), {.offset = c.offset, .length = c.length});
    ASSERT_TRUE(part) << c.offset;
    const auto begin = std::min<std::uint64_t>(c.offset, 5000);
    const auto wanted =
        whole.bytes.bytes().subspan(begin, std::min<std::uint64_t>(c.length.value_or(5000), 5000 - begin));
    EXPECT_TRUE(std::ranges::equal(part->bytes.bytes(), wanted)) << c.offset;
    EXPECT_EQ(part->total_bytes, 5000U);
  }
  EXPECT_TRUE(cache->read(key_of(1), {.if_match = "\"tag\""}));
  EXPECT_FALSE(cache->read(key_of(1), {.if_match = "\"other\""}));
  EXPECT_EQ(cache->stats().n_damaged, 0);
}

TEST(DiskCache, SurvivesARestart) {
  const Folder folder;
  put(*open(folder, 1 << 20), 1, 5000);
  auto cache = open(folder, 1 << 20);
  const auto again = cache->read(key_of(1), {});
  ASSERT_TRUE(again);
  EXPECT_TRUE(is_same(*again, object_of(1, 5000)));
}

TEST(DiskCache, EveryFlippedByteAndEveryCutIsFoundAndGoes) {
  const Folder folder;
  auto cache = open(folder, 1 << 20);
  put(*cache, 1, 60);
  const std::string path = folder.entries().at(0);
  const std::string good = read_file(path);
  std::vector<std::string> bad;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0x01, 0x20, 0x80}) {
      bad.push_back(good);
      bad.back()[i] = static_cast<char>(bad.back()[i] ^ bit);
    }
    bad.push_back(good.substr(0, i));
  }
  bad.push_back(good + "x");
  bad.push_back(good + good);
  bad.push_back(std::string(10'000, '\xFF'));
  for (const std::string& bytes : bad) {
    write_file(path, bytes);
    ASSERT_FALSE(cache->read(key_of(1), {})) << bytes.size();
    ASSERT_FALSE(cache->read(key_of(1), {.length = 10})) << bytes.size();
    ASSERT_FALSE(fs::exists(path)) << "left to be found damaged again";
  }
  EXPECT_EQ(cache->stats().n_damaged, static_cast<std::int64_t>(bad.size()));
  write_file(path, good);
  EXPECT_TRUE(cache->read(key_of(1), {}));
  // Another object's sound entry is not this one's.
  put(*cache, 2, 60);
  fs::copy_file(folder.entries().at(folder.entries().at(0) == path ? 1 : 0), path,
                fs::copy_options::overwrite_existing);
  EXPECT_FALSE(cache->read(key_of(1), {}));
}

TEST(DiskCache, EveryEpochHitsTheShareThatFits) {
  const Folder folder;
  constexpr int kObjects = 600;
  constexpr std::uint64_t kLimit = kObjects / 4 * kBlock;
  std::mt19937 random(1);
  for (const bool is_shuffled : {false, true}) {
    const std::string sub = is_shuffled ? "/shuffled" : "/as-is";
    auto cache = DiskCache::open({.dir = folder.path() + sub, .limit_bytes = kLimit}, Clock::real()).value();
    Lru lru(kObjects / 4);
    std::vector<int> order(kObjects);
    std::iota(order.begin(), order.end(), 0);
    for (int epoch = 0; epoch < 3; ++epoch) {
      if (is_shuffled) std::shuffle(order.begin(), order.end(), random);
      double n_hits = 0, n_lru_hits = 0;
      for (const int i : order) {
        n_lru_hits += lru.look_up(i) ? 1 : 0;
        if (cache->read(key_of(i), {})) {
          ++n_hits;
        } else {
          cache->offer(key_of(i), object_of(i, 1000));
        }
      }
      cache->drain();
      EXPECT_LE(cache->stats().used_bytes, kLimit);
      if (epoch == 0) {
        EXPECT_NEAR(static_cast<double>(cache->stats().n_written), kObjects / 4 * (1 + std::log(4.)), kObjects / 20.);
        continue;
      }
      EXPECT_LE(n_hits / kObjects, 0.25);
      EXPECT_GE(n_hits / kObjects, 0.25 * (1 - 3 / 64.));  // a 64th of the limit may be free, and the last block
      EXPECT_NEAR(cache->stats().share, 0.25, 0.04);       // three deviations of 250 objects' places
      EXPECT_LE(n_lru_hits / kObjects, is_shuffled ? 0.07 : 0) << "the trap";
    }
    EXPECT_LE(cache->stats().n_written, kObjects * 2 / 3) << "later epochs write next to nothing";
    EXPECT_GT(cache->stats().n_evicted, 0);
    EXPECT_EQ(cache->stats().n_lagging, 0);
  }
}

TEST(DiskCache, AnotherVersionTakesThePlaceOfTheOlder) {
  const Folder folder;
  auto cache = open(folder, 1 << 20);
  put(*cache, 1, 50'000, "\"old\"");
  put(*cache, 1, 9'000, "\"new\"");
  const auto now = cache->read(key_of(1), {});
  ASSERT_TRUE(now);
  EXPECT_EQ(now->etag, "\"new\"");
  put(*cache, 2, 10);
  EXPECT_EQ(folder.entries().size(), 2U);
  EXPECT_EQ(cache->stats().used_bytes, folder.footprint());
}

TEST(DiskCache, KeepsOnlyWhatItCanAskAfter) {
  const Folder folder;
  auto cache = open(folder, 1 << 20);
  put(*cache, 1, 100, "");
  put(*cache, 2, 100, "W/\"weak\"");
  put(*cache, 3, 0);
  put(*cache, 4, (1 << 20) / 8 + 1);
  put(*cache, 5, 100, '"' + std::string(CacheEntry::kMaxTagBytes, 't') + '"');
  EXPECT_TRUE(folder.entries().empty());
  cache = open(folder, 1 << 20, /*is_validated=*/false);
  put(*cache, 1, 100, "");
  EXPECT_TRUE(cache->read(key_of(1), {}));
}

TEST(DiskCache, ANewLimitHoldsFromTheStart) {
  const Folder folder;
  constexpr std::uint64_t kLimit = 64 * kBlock;
  const auto fill = [](DiskCache& cache) {
    for (int i = 0; i < 400; ++i) cache.offer(key_of(i), object_of(i, 1000));
    cache.drain();
  };
  {
    auto cache = open(folder, kLimit);
    fill(*cache);
    EXPECT_GE(folder.footprint(), kLimit * 15 / 16);
  }
  {
    auto smaller = open(folder, kLimit / 2);
    fill(*smaller);  // joins first
    EXPECT_LE(folder.footprint(), kLimit / 2);
    EXPECT_EQ(smaller->stats().used_bytes, folder.footprint());
  }
  auto larger = open(folder, 2 * kLimit);
  fill(*larger);
  EXPECT_GE(folder.footprint(), kLimit) << "more room was not used";
  EXPECT_LE(folder.footprint(), 2 * kLimit);
}

TEST(DiskCache, ProcessesShareOneLimit) {
  const Folder folder;
  constexpr std::uint64_t kLimit = 50 * kBlock;
  std::vector<pid_t> children;
  for (int child = 0; child < 3; ++child) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    auto cache = open(folder, kLimit);
    for (int i = 0; i < 300; ++i) {
      const int which = (i + 100 * child) % 300;
      const auto found = cache->read(key_of(which), {});
      if (found && !is_same(*found, object_of(which, 3000))) _exit(1);
      if (!found) cache->offer(key_of(which), object_of(which, 3000));
      if (i % 20 == 0) cache->drain();
    }
    cache->drain();
    _exit(cache->stats().n_damaged == 0 && cache->stats().used_bytes <= kLimit ? 0 : 2);
  }
  int n_looks = 0;
  for (const pid_t child : children) {
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
      const int totals = ::open(folder.inside("totals").c_str(), O_RDWR | O_CLOEXEC);
      if (totals < 0) continue;  // not made yet
      flock(totals, LOCK_EX);    // nothing is named or evicted while we count
      EXPECT_LE(folder.footprint(), kLimit);
      ++n_looks;
      close(totals);
      std::this_thread::sleep_for(2ms);  // or nobody else would get the lock
    }
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  }
  EXPECT_GT(n_looks, 0);
  EXPECT_EQ(folder.n_temporary(), 0U);
  EXPECT_GE(folder.footprint(), kLimit * 9 / 10);
  auto cache = open(folder, kLimit);
  put(*cache, 1000, 1);
  EXPECT_EQ(cache->stats().used_bytes, folder.footprint());
}

TEST(DiskCache, WhatAKilledProcessLeftIsPutRight) {
  const Folder folder;
  put(*open(folder, 1 << 20), 1, 5000);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto mine = CacheFolder::open(folder.path()).value();
    CacheTotals totals;
    if (!mine->join(1 << 20, {}).ok() || !mine->reserve(0, 100 * kBlock, 1 << 20, totals).ok()) _exit(1);
    if (!mine->write("half a head", {}).ok() || ::write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char c = 0;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  EXPECT_EQ(folder.n_temporary(), 1U);
  {
    auto beside = open(folder, 1 << 20);  // while it lives, its file is its own, and its bytes count
    put(*beside, 2, 5000);
    EXPECT_EQ(folder.n_temporary(), 1U);
    EXPECT_GE(beside->stats().used_bytes, 100 * kBlock);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    // Not alone, but whose process is gone is known.
    put(*open(folder, 1 << 20), 3, 5000);
    EXPECT_EQ(folder.n_temporary(), 0U);
  }
  auto cache = open(folder, 1 << 20);
  put(*cache, 4, 5000);
  EXPECT_EQ(cache->stats().used_bytes, folder.footprint());
  for (int i = 1; i <= 4; ++i) EXPECT_TRUE(cache->read(key_of(i), {})) << i;
  close(ready[0]);
  close(ready[1]);
}

TEST(DiskCache, AFullDiskRestsWritingWithOneLine) {
  const Folder folder;
  FakeClock clock;
  clock.advance(1s);
  const Warnings warnings;
  auto cache = open(folder, 1 << 20, true, clock);
  put(*cache, 1, 50'000);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{20'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);  // the writing thread gets an error, its signal is blocked
  for (int i = 2; i < 10; ++i) put(*cache, i, 50'000);
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(folder.entries().size(), 1U);
  EXPECT_EQ(folder.n_temporary(), 0U);
  ASSERT_EQ(warnings.lines().size(), 1U);
  EXPECT_THAT(warnings.lines()[0], HasSubstr("writing a file: File too large; nothing more is kept for 1 minutes"));
  put(*cache, 2, 50'000);
  EXPECT_EQ(folder.entries().size(), 1U) << "it rests";
  EXPECT_TRUE(cache->read(key_of(1), {})) << "reading does not";
  clock.advance(DiskCache::kFirstRest);
  put(*cache, 2, 50'000);
  EXPECT_EQ(folder.entries().size(), 2U);
  EXPECT_EQ(cache->stats().used_bytes, folder.footprint());
  EXPECT_EQ(warnings.lines().size(), 1U);
}

TEST(DiskCache, ADiskThatIsReallyFull) {
  const Folder folder;
  if (mount("none", folder.path().c_str(), "tmpfs", 0, "size=256k,nr_inodes=200") != 0)
    GTEST_SKIP() << "only root may mount a disk";
  {
    const Warnings warnings;
    auto cache = open(folder, 1 << 20);
    for (int i = 0; i < 10; ++i) put(*cache, i, 50'000);
    ASSERT_EQ(warnings.lines().size(), 1U);
    EXPECT_THAT(warnings.lines()[0], HasSubstr("No space left on device; nothing more is kept for 1 minutes"));
    const std::size_t n_kept = folder.entries().size();
    EXPECT_GE(n_kept, 3U);
    int n_found = 0;
    for (int i = 0; i < 10; ++i) n_found += cache->read(key_of(i), {}) ? 1 : 0;
    EXPECT_EQ(n_found, static_cast<int>(n_kept));
    EXPECT_EQ(cache->stats().n_damaged, 0);
  }
  for (int i = 0; i < 1000; ++i) write_file(fmt::format("{}/fill{}", folder.path(), i), "x");
  EXPECT_EQ(CacheFolder::open(folder.path() + "/another").status().reason(), Reason::kFetchIo);
  EXPECT_TRUE(open(folder, 1 << 20)->read(key_of(0), {})) << "what is there is still served";
  umount(folder.path().c_str());
}

TEST(DiskCache, SomebodyWhoDeletesTheFolderHarmsNobody) {
  const Folder folder;
  const Warnings warnings;
  auto cache = open(folder, 1 << 20);
  put(*cache, 1, 5000);
  fs::remove_all(folder.inside(""));
  EXPECT_FALSE(cache->read(key_of(1), {}));
  put(*cache, 2, 5000);
  EXPECT_EQ(warnings.lines().size(), 1U);
}

TEST(DiskCache, StopsWhileAnotherProcessCounts) {
  const Folder folder;
  put(*open(folder, 1 << 20), 1, 5000);
  const int users = ::open(folder.inside("users").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(users, LOCK_EX), 0);
  auto cache = open(folder, 1 << 20);
  EXPECT_TRUE(cache->read(key_of(1), {})) << "reading needs no lock";
  cache->offer(key_of(2), object_of(2, 100));
  const auto began = std::chrono::steady_clock::now();
  cache->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 1s);
  close(users);
}

TEST(DiskCache, RefusesAFolderThatCannotBe) {
  const Folder folder;
  write_file(folder.path() + "/file", "x");
  auto cache = DiskCache::open({.dir = folder.path() + "/file/cache", .limit_bytes = 1}, Clock::real());
  EXPECT_EQ(cache.status().reason(), Reason::kSettings);
  EXPECT_THAT(cache.status().message(), HasSubstr("cache.dir: " + folder.path() + "/file/cache: "));
}

TEST(DiskCache, NothingOfAUrlIsOnDiskAndOthersCannotRead) {
  const Folder folder;
  auto cache = open(folder, 1 << 20);
  const CacheKey key = CacheKey::of("", "https://h/a.png?X-Amz-Signature=SECRET");
  cache->offer(key, object_of(1, 100));
  cache->drain();
  ASSERT_TRUE(cache->read(key, {}));
  for (const auto& one : fs::recursive_directory_iterator(folder.path())) {
    EXPECT_EQ(one.path().string().find("SECRET"), std::string::npos);
    EXPECT_EQ(fs::status(one).permissions() & (fs::perms::group_all | fs::perms::others_all), fs::perms::none) << one;
    if (one.is_regular_file()) {
      EXPECT_EQ(read_file(one.path()).find("SECRET"), std::string::npos) << one;
    }
  }
}

}  // namespace
}  // namespace stoker
