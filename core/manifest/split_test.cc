#include "manifest/split.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/rng.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

bool side_of(const SplitRule& rule, const std::vector<std::string>& pieces) {
  SplitHasher hasher(rule);
  for (const std::string& piece : pieces) hasher.bytes(piece);
  return hasher.end_line();
}

// If this fails, rows that nobody trained on are trained on.
TEST(SplitRule, LiteralSides) {
  const SplitRule rule{.key = "", .held_out_millionths = 200'000};
  std::string sides;
  for (int i = 0; i < 40; ++i) sides += side_of(rule, {fmt::format("row {}\n", i)}) ? '1' : '0';
  EXPECT_EQ(sides, "0011100000000001100000001000001000000010");
  const SplitRule other{.key = "2", .held_out_millionths = 200'000};
  sides.clear();
  for (int i = 0; i < 40; ++i) sides += side_of(other, {fmt::format("row {}\n", i)}) ? '1' : '0';
  EXPECT_EQ(sides, "0010000001100000000010000110000100001000");
}

TEST(SplitRule, HoldsOutItsShareAndALargerShareHoldsOutMore) {
  const SplitRule small{.key = "k", .held_out_millionths = 10'000};
  const SplitRule large{.key = "k", .held_out_millionths = 50'000};
  int n_small = 0;
  int n_large = 0;
  const KeyedHash hash("k");
  for (int i = 0; i < 100'000; ++i) {
    const std::uint64_t h = hash.of(fmt::format("row {}", i));
    n_small += small.is_held_out(h) ? 1 : 0;
    n_large += large.is_held_out(h) ? 1 : 0;
    EXPECT_TRUE(!small.is_held_out(h) || large.is_held_out(h));
  }
  EXPECT_NEAR(n_small, 1000, 160);  // five standard deviations
  EXPECT_NEAR(n_large, 5000, 350);
}

TEST(SplitRule, ALinesEndAndThePiecesItComesInDoNotMatter) {
  const SplitRule rule{.key = "k", .held_out_millionths = 500'000};
  Rng rng(5);
  for (int i = 0; i < 400; ++i) {
    std::string text = fmt::format("row {}", i);
    if (i % 3 == 0) {
      const std::size_t at = rng.next() % text.size();
      text = text.substr(0, at) + '\r' + text.substr(at);
    }
    if (i % 5 == 0) text = std::string(static_cast<std::size_t>(i), '\r') + text;
    const bool side = side_of(rule, {text + "\n"});
    for (const char* end : {"", "\n", "\r\n", "\r"}) {
      const std::string line = text + end;
      const std::size_t a = rng.next() % (line.size() + 1);
      const std::size_t b = a + rng.next() % (line.size() + 1 - a);
      std::vector<std::string> pieces;
      for (const std::string& piece : {line.substr(0, a), line.substr(a, b - a), line.substr(b)}) {
        if (!piece.empty()) pieces.push_back(piece);
      }
      EXPECT_EQ(side_of(rule, pieces), side) << i << " cut at " << a << " and " << b;
    }
  }
}

class RowSidesTest : public ::testing::Test {
 protected:
  RowSidesTest() {
    std::string name = (fs::temp_directory_path() / "stoker_split_XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
  }
  ~RowSidesTest() override { fs::remove_all(dir_); }
  fs::path dir_;
};

TEST_F(RowSidesTest, FindsTheNthRowOfASide) {
  Rng rng(9);
  for (const std::size_t n : {0, 1, 63, 64, 65, 511, 512, 513, 5000}) {
    for (const std::uint64_t every : {1, 2, 100, 100000}) {
      RowSides sides;
      std::vector<std::uint64_t> expected[2];
      for (std::size_t i = 0; i < n; ++i) {
        const bool held_out = rng.next() % every == 0;
        sides.add(held_out);
        expected[held_out ? 1 : 0].push_back(i);
      }
      sides.close();
      const std::string path = (dir_ / "sides").string();
      ASSERT_TRUE(sides.write(path, "content").ok());
      RowSides mapped;
      ASSERT_TRUE(mapped.read(path, "content", n));
      for (RowSides* each : {&sides, &mapped}) {
        for (const bool held_out : {false, true}) {
          ASSERT_EQ(each->n_on(held_out), expected[held_out ? 1 : 0].size());
          for (std::size_t k = 0; k < expected[held_out ? 1 : 0].size(); ++k) {
            ASSERT_EQ(each->nth(held_out, k), expected[held_out ? 1 : 0][k]) << n << " " << every << " " << k;
          }
        }
      }
    }
  }
}

TEST_F(RowSidesTest, RefusesAFileThatIsDamagedOrAnothers) {
  RowSides sides;
  for (int i = 0; i < 1000; ++i) sides.add(i % 7 == 0);
  sides.close();
  const std::string path = (dir_ / "sides").string();
  ASSERT_TRUE(sides.write(path, "content").ok());
  EXPECT_TRUE(RowSides().read(path, "content", 1000));
  EXPECT_FALSE(RowSides().read(path, "other", 1000));
  EXPECT_FALSE(RowSides().read(path, "content", 1001));
  EXPECT_FALSE(RowSides().read(path + "x", "content", 1000));
  std::string bytes;
  {
    std::ifstream in(path, std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (std::size_t at = 0; at < bytes.size(); at += 5) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    std::ofstream(path, std::ios::binary) << damaged;
    EXPECT_FALSE(RowSides().read(path, "content", 1000)) << "byte " << at;
  }
  std::ofstream(path, std::ios::binary) << bytes.substr(0, bytes.size() - 1);
  EXPECT_FALSE(RowSides().read(path, "content", 1000));
}

}  // namespace
}  // namespace stoker
