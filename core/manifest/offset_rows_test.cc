#include "manifest/offset_rows.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/rng.h"
#include "manifest/index.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

class OffsetRowsTest : public ::testing::Test {
 protected:
  OffsetRowsTest() {
    std::string name = (fs::temp_directory_path() / "stoker_offsets_XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
  }
  ~OffsetRowsTest() override { fs::remove_all(dir_); }

  std::string write(const std::string& name, std::string_view content) {
    const fs::path path = dir_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }
  static Manifest open(const std::string& path, RowNumbers numbers, std::optional<SplitRule> split = {}) {
    ManifestOptions options;
    options.row_numbers = numbers;
    options.split = std::move(split);
    auto manifest = Manifest::open(path, options);
    EXPECT_TRUE(manifest.ok()) << manifest.status().to_string();
    return *std::move(manifest);
  }
  static std::vector<std::uint64_t> in_chunks(const Manifest& manifest, std::uint64_t chunk_bytes, bool held_out) {
    std::vector<std::uint64_t> rows;
    for (std::uint64_t at = 0; at < manifest.size_bytes(); at += chunk_bytes) {
      const Status found =
          manifest.find_rows(at, std::min(at + chunk_bytes, manifest.size_bytes()), held_out, 1'000'000, rows, {});
      EXPECT_TRUE(found.ok()) << found.to_string();
    }
    return rows;
  }

  fs::path dir_;
};

TEST_F(OffsetRowsTest, ChunksOfAnySizeHoldEachRowOnce) {
  Rng rng(3);
  for (const std::string& begin : {std::string(), std::string("\xEF\xBB\xBF"), std::string(" \n\r\n")}) {
    std::string text = begin;
    for (int i = 0; i < 120; ++i) {
      text += fmt::format("{{\"n\": {}, \"x\": \"{}\"}}", i, std::string(rng.next() % 60, 'x'));
      text += i % 7 == 0 ? "\r\n" : "\n";
      if (i % 11 == 0) text += i % 2 == 0 ? "\n" : "  \t\r\n";
    }
    text += "the last row has no end";
    const std::string path = write("rows.jsonl", text);
    const SplitRule rule{.key = "k", .held_out_millionths = 300'000};
    const Manifest indexed = open(path, RowNumbers::kCounted, rule);
    const Manifest manifest = open(path, RowNumbers::kOffsets, rule);
    EXPECT_EQ(manifest.size_bytes(), text.size());
    std::string a;
    std::string b;
    for (const bool held_out : {false, true}) {
      for (const std::uint64_t chunk_bytes : {1, 7, 100, 1 << 20}) {
        const auto rows = in_chunks(manifest, chunk_bytes, held_out);
        ASSERT_EQ(rows.size(), indexed.n_rows(held_out)) << chunk_bytes;
        for (std::size_t k = 0; k < rows.size(); ++k) {
          const std::uint64_t row = indexed.nth_row(held_out, k);
          ASSERT_EQ(rows[k], indexed.row(row).offset);
          ASSERT_EQ(*manifest.read(rows[k], a), *indexed.read(row, b));
        }
      }
    }
    EXPECT_GT(indexed.n_rows(true), 20U);
  }
}

TEST_F(OffsetRowsTest, RowsLongerThanPiecesAreFoundAndRead) {
  const std::string lengthy(3'000'000, 'y');
  const std::string path = write("long.jsonl", "a\n" + lengthy + "\nb\n");
  const Manifest manifest = open(path, RowNumbers::kOffsets);
  EXPECT_EQ(in_chunks(manifest, 1'000'000, false), (std::vector<std::uint64_t>{0, 2, 3'000'003}));
  std::string buffer;
  EXPECT_EQ(*manifest.read(2, buffer), lengthy);
  EXPECT_EQ(*manifest.read(0, buffer), "a");
  EXPECT_EQ(*manifest.read(3'000'003, buffer), "b");
  EXPECT_EQ(manifest.describe(2), path + " (byte 2)");
  EXPECT_EQ(manifest.read(3'000'005, buffer).status().reason(), Reason::kManifest);
  ManifestOptions options;
  options.row_numbers = RowNumbers::kOffsets;
  options.max_row_bytes = 2'999'999;
  const auto strict = Manifest::open(path, options);
  EXPECT_EQ(strict->read(2, buffer).status().reason(), Reason::kJsonRowTooLong);
  EXPECT_EQ(*strict->read(0, buffer), "a");
}

TEST_F(OffsetRowsTest, TheFingerprintIsThatOfTheSamples) {
  std::string text;
  for (int i = 0; i < 60'000; ++i) text += fmt::format("{{\"row\": {:060}}}\n", i);
  const Manifest whole = open(write("a.jsonl", text), RowNumbers::kOffsets);
  EXPECT_EQ(open(write("b.jsonl", text), RowNumbers::kOffsets).fingerprint(), whole.fingerprint());
  EXPECT_NEAR(static_cast<double>(whole.about_n_rows()), 60'000, 1500);
  EXPECT_NE(open(write("b.jsonl", text + "\n"), RowNumbers::kOffsets).fingerprint(), whole.fingerprint());
  for (const std::size_t at : {std::size_t{5}, text.size() - 5}) {
    std::string other = text;
    other[at] = '7';
    EXPECT_NE(open(write("b.jsonl", other), RowNumbers::kOffsets).fingerprint(), whole.fingerprint()) << at;
  }
}

TEST_F(OffsetRowsTest, RefusesWhatItCannotDo) {
  ManifestOptions options;
  options.row_numbers = RowNumbers::kOffsets;
  const auto list = Manifest::open(write("list.json", "[{\"a\": 1}]"), options);
  EXPECT_EQ(list.status().reason(), Reason::kSettings);
  const Manifest manifest = open(write("rows.jsonl", "a\nb\nc\n"), RowNumbers::kOffsets);
  std::vector<std::uint64_t> rows;
  EXPECT_EQ(manifest.find_rows(0, 6, false, 2, rows, {}).reason(), Reason::kSettings);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(manifest.find_rows(0, 6, false, 9, rows, stop.get_token()).reason(), Reason::kStopped);
}

}  // namespace
}  // namespace stoker
