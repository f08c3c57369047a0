#include "index/record_store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/rng.h"
#include "index/record_log.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

constexpr Hash128 kRules{1, 2};

Hash128 key_of(std::uint64_t n) { return n % 2 == 0 ? Hash128{7, n} : Hash128{mix64(n), mix64(n + 1)}; }

class RecordStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("stoker-record-store-test-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    set_log_sink([this](LogLevel, std::string_view line) { said_.emplace_back(line); });
  }
  void TearDown() override {
    set_log_sink({});
    fs::remove_all(folder_);
  }
  std::vector<fs::path> files(std::string_view kind) const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().filename().string().starts_with(kind)) out.push_back(entry.path());
    }
    return out;
  }
  static std::string bytes_of(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const fs::path& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  fs::path folder_;
  std::vector<std::string> said_;
};

TEST_F(RecordStoreTest, LaterRunsFindWhatEarlierOnesPut) {
  std::map<Hash128, std::string> expected;
  std::uint64_t random = 1;
  for (int run = 0; run < 6; ++run) {
    RecordStore store(folder_, kRules);
    for (const auto& [key, value] : expected) EXPECT_EQ(store.find(key), value);
    EXPECT_EQ(store.find({9, 9}), std::nullopt);
    for (int i = 0; i < 3000; ++i) {
      random = mix64(random + 1);
      const Hash128 key = key_of(random % 5000);
      const std::string value(1 + random % 40, static_cast<char>(random >> 32));
      store.put(key, value);
      expected[key] = value;
      EXPECT_EQ(store.find(key), value);
      if (i % 700 == 0) store.flush();
    }
    const Hash128 gone = key_of(static_cast<std::uint64_t>(run));
    store.forget(gone);
    if (expected.contains(gone)) {
      EXPECT_TRUE(store.find(gone)) << "one run does not change its mind";
    }
    expected.erase(gone);
  }
  const RecordStore store(folder_, kRules);
  for (const auto& [key, value] : expected) EXPECT_EQ(store.find(key), value);
  for (std::uint64_t n = 0; n < 6; ++n) EXPECT_EQ(store.find(key_of(n)).has_value(), expected.contains(key_of(n)));
  EXPECT_LE(fs::exists(folder_ / "table") ? files("").size() : 99, 10U);
  EXPECT_TRUE(said_.empty()) << said_.front();
}

TEST_F(RecordStoreTest, AWriterKilledAtAnyByteLosesItsLastBlockOnly) {
  std::vector<std::uint64_t> ends;
  fs::path log;
  {
    RecordStore store(folder_, kRules);
    for (std::uint64_t block = 0; block < 3; ++block) {
      for (std::uint64_t n = 0; n < 5; ++n) store.put(key_of(10 * block + n), "value of " + std::to_string(n));
      store.flush();
      log = files("log-").at(0);
      ends.push_back(fs::file_size(log));
    }
  }
  const std::string whole = bytes_of(files("done-").at(0));
  ASSERT_EQ(whole.size(), ends.back());
  // Nobody merges meanwhile: that would read the same bytes, and wait for the disk each time.
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  const OwnedFd lock(open((folder_ / "lock").c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_EQ(flock(lock.get(), LOCK_EX), 0);
  for (std::size_t kept = 0; kept <= whole.size(); ++kept) {
    // Every byte near the border of a block; elsewhere some.
    const bool is_near =
        std::any_of(ends.begin(), ends.end(), [&](auto end) { return end <= kept + 2 && kept <= end; });
    if (!is_near && kept % 7 != 0) continue;
    write(folder_ / "log-0", std::string_view(whole).substr(0, kept));
    const RecordStore store(folder_, kRules);
    for (std::uint64_t block = 0; block < 3; ++block) {
      EXPECT_EQ(store.find(key_of(10 * block + 4)).has_value(), kept >= ends[block]) << kept << " bytes";
    }
    EXPECT_EQ(files("log-").size(), 1U);  // its writer may live
  }
}

TEST_F(RecordStoreTest, DamageIsToldAndNeverBelieved) {
  const auto filled = [&] {
    fs::remove_all(folder_);
    for (int run = 0; run < 2; ++run) {
      RecordStore store(folder_, kRules);
      for (std::uint64_t n = 0; n < 400; ++n) store.put(key_of(n), std::string(20, static_cast<char>('a' + n % 26)));
    }
    const RecordStore merged(folder_, kRules);
  };
  filled();
  const std::string table = bytes_of(folder_ / "table");
  for (std::size_t at = 0; at < table.size(); at += at < 16 || at + 120 > table.size() ? 1 : 211) {
    said_.clear();
    std::string changed = table;
    changed[at] = static_cast<char>(changed[at] ^ (1 << at % 8));
    write(folder_ / "table", changed);
    const RecordStore store(folder_, kRules);
    std::size_t n_lost = 0;
    for (std::uint64_t n = 0; n < 400; n += 9) {
      const auto found = store.find(key_of(n));
      if (found) {
        EXPECT_EQ(*found, std::string(20, static_cast<char>('a' + n % 26))) << at;
      }
      n_lost += found ? 0 : 1;
    }
    EXPECT_GT(n_lost, 0U) << at;
    EXPECT_EQ(said_.size(), 1U) << at;
  }
  for (std::size_t kept = 0; kept < table.size(); kept += 1 + table.size() / 50) {
    write(folder_ / "table", std::string_view(table).substr(0, kept));
    EXPECT_EQ(RecordStore(folder_, kRules).find(key_of(3)), std::nullopt);
  }
  // What comes next mends it.
  {
    RecordStore store(folder_, kRules);
    store.put(key_of(3), "again");
  }
  said_.clear();
  EXPECT_EQ(RecordStore(folder_, kRules).find(key_of(3)), "again");
  EXPECT_EQ(RecordStore(folder_, kRules).find(key_of(3)), "again");
  // Other rules are another folder's; a file of theirs is not read.
  EXPECT_EQ(RecordStore(folder_, {1, 3}).find(key_of(3)), std::nullopt);
}

TEST_F(RecordStoreTest, ManyProcessesAtOnceLeaveAFewFilesWithAllOfIt) {
  constexpr int kStores = 12;
  std::vector<std::thread> threads;
  for (int t = 0; t < kStores; ++t) {
    threads.emplace_back([this, t] {
      for (int round = 0; round < 3; ++round) {
        RecordStore store(folder_, kRules);
        for (std::uint64_t n = 0; n < 50; ++n) {
          store.put(key_of(1000 * static_cast<std::uint64_t>(t) + n), std::to_string(round));
          if (n % 20 == 0) store.flush();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const RecordStore store(folder_, kRules);
  for (int t = 0; t < kStores; ++t) {
    for (std::uint64_t n = 0; n < 50; ++n) {
      EXPECT_TRUE(store.find(key_of(1000 * static_cast<std::uint64_t>(t) + n))) << t << " " << n;
    }
  }
  EXPECT_LE(files("").size(), 10U);  // the table, the lock, and too little to be merged
}

TEST_F(RecordStoreTest, WhatIsTooMuchForMemoryGoesIntoATable) {
  constexpr std::uint64_t kRecords = 60'000;
  RecordStore store(folder_, kRules);
  store.put(key_of(1), "old");
  store.forget(key_of(1));
  for (std::uint64_t n = 0; n < kRecords; ++n) store.put(key_of(n), std::string(600, static_cast<char>(n)));
  store.flush();
  EXPECT_EQ(files("run-").size(), 1U);
  EXPECT_EQ(files("log-").size(), 0U);
  store.put(key_of(5), "new");
  EXPECT_EQ(store.find(key_of(5)), "new");
  for (std::uint64_t n = 6; n < kRecords; n += 991) {
    EXPECT_EQ(store.find(key_of(n)), std::string(600, static_cast<char>(n)));
  }
  store.flush();
  // Another process merges both while this one goes on.
  const RecordStore other(folder_, kRules);
  EXPECT_EQ(other.find(key_of(5)), "new");
  EXPECT_EQ(other.find(key_of(1)), std::nullopt);
  EXPECT_EQ(files("run-").size(), 0U);
  EXPECT_EQ(store.find(key_of(6)), std::string(600, '\x06'));
}

TEST_F(RecordStoreTest, ALogThatWasRemovedUnderItsWriterIsBegunAnew) {
  RecordStore store(folder_, kRules);
  store.put(key_of(1), "one");
  store.flush();
  for (const fs::path& log : files("log-")) fs::remove(log);
  store.put(key_of(2), "two");
  store.flush();
  EXPECT_EQ(RecordStore(folder_, kRules).find(key_of(2)), "two");
}

TEST_F(RecordStoreTest, AFolderThatCannotBeUsedStopsNothing) {
  fs::create_directories(folder_);
  write(folder_ / "file", "");
  {
    RecordStore store(folder_ / "file" / "below", kRules);
    store.put(key_of(1), "one");
    store.flush();
    EXPECT_EQ(store.find(key_of(1)), "one");
  }
  EXPECT_EQ(said_.size(), 1U);
  said_.clear();
  // A full disk, as far as a process can make one: no file may grow beyond this.
  RecordStore store(folder_ / "full", kRules);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  const rlimit little{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &little);
  for (std::uint64_t n = 0; n < 10; ++n) {
    store.put(key_of(n), std::string(200, 'x'));
    store.flush();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(said_.size(), 1U);
  for (std::uint64_t n = 0; n < 10; ++n) EXPECT_TRUE(store.find(key_of(n)));
  const RecordStore later(folder_ / "full", kRules);
  EXPECT_TRUE(later.find(key_of(0)));  // what was whole
  EXPECT_FALSE(later.find(key_of(9)));
}

}  // namespace
}  // namespace stoker
