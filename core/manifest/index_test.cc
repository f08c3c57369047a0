#include "manifest/index.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

class ManifestTest : public ::testing::Test {
 protected:
  ManifestTest() {
    std::string name = (fs::temp_directory_path() / "stoker_index_XXXXXX").string();
    dir_ = ::mkdtemp(name.data());
    options_.index_dir = dir_ / "index";
  }
  ~ManifestTest() override { fs::remove_all(dir_); }

  std::string write(const std::string& name, std::string_view content) {
    const fs::path path = dir_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }

  Manifest open(const std::string& path) {
    auto manifest = Manifest::open(path, options_);
    EXPECT_TRUE(manifest.ok()) << manifest.status().to_string();
    return *std::move(manifest);
  }

  static std::string row(const Manifest& manifest, std::uint64_t i) {
    std::string buffer;
    const auto line = manifest.read(i, buffer);
    return line.ok() ? std::string(*line) : line.status().to_string();
  }

  std::size_t n_files(const std::string& extension) const {
    std::size_t n = 0;
    for (const auto& entry : fs::directory_iterator(options_.index_dir))
      n += entry.path().extension() == extension ? 1 : 0;
    return n;
  }

  fs::path dir_;
  ManifestOptions options_;
};

struct Expected {
  std::string text;
  std::uint64_t offset;
  std::uint64_t line;
};

// The plain way: split at LF, drop one CR, skip lines of blanks.
std::vector<Expected> split(std::string_view content) {
  std::vector<Expected> rows;
  std::uint64_t at = content.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  for (std::uint64_t line = 1; at < content.size(); ++line) {
    const std::size_t end = std::min(content.find('\n', at), content.size());
    std::string_view text = content.substr(at, end - at);
    if (text.find_first_not_of(" \t\r") != std::string_view::npos) {
      if (text.ends_with('\r')) text.remove_suffix(1);
      rows.push_back({std::string(text), at, line});
    }
    at = end + 1;
  }
  return rows;
}

void expect_rows(const Manifest& manifest, std::string_view content) {
  const std::vector<Expected> expected = split(content);
  ASSERT_EQ(manifest.n_rows(), expected.size());
  std::string buffer;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const RowLocation at = manifest.row(i);
    EXPECT_EQ(at.offset, expected[i].offset) << i;
    EXPECT_EQ(at.line, expected[i].line) << i;
    const auto line = manifest.read(i, buffer);
    ASSERT_TRUE(line.ok()) << line.status().to_string();
    EXPECT_EQ(*line, expected[i].text) << i;
  }
}

TEST_F(ManifestTest, ReadsWhatALineByLineReaderReads) {
  Rng rng(1);
  for (int round = 0; round < 60; ++round) {
    std::string content = round % 4 == 0 ? "\xEF\xBB\xBF" : "";
    const std::uint64_t n = rng.next() % 1200;
    for (std::uint64_t i = 0; i < n; ++i) {
      switch (rng.next() % 8) {
        case 0:
          content += "\n";
          break;
        case 1:
          content += " \t\r\n";
          break;
        case 2:
          content += "{\"crlf\"}\r\n";
          break;
        case 3:
          content += "  {\"indented\"}\n";
          break;
        case 4:
          content += "\xE2\x80\xA8\xC2\x85\n";
          break;
        default:
          content += std::string(rng.next() % 50, 'x') + "y\n";
      }
    }
    if (round % 3 == 0) content += "{\"last row without a line end\"}";
    if (round % 3 == 1) content += "   ";
    options_.index_dir = round % 2 == 0 ? std::string() : (dir_ / "index").string();
    expect_rows(open(write(std::to_string(round), content)), content);
    if (HasFailure()) FAIL() << "round " << round;
  }
}

TEST_F(ManifestTest, RowsAcrossTheScansChunks) {
  std::string content;
  Rng rng(3);
  while (content.size() < 10'000'000)
    content += std::string(1 + rng.next() % 1'500'000, 'a') + (rng.next() % 3 == 0 ? "\n \n" : "\n");
  expect_rows(open(write("long", content)), content);
}

TEST_F(ManifestTest, EmptyFilesHaveNoRows) {
  for (const std::string_view content : {"", "\n", "\xEF\xBB\xBF", "  \r\n\n"}) {
    EXPECT_EQ(open(write("empty", content)).n_rows(), 0U);
  }
}

TEST_F(ManifestTest, IndexIsUsedAgainAndSharedByContent) {
  const std::string path = write("a", "{1}\n{2}\n");
  const Manifest first = open(path);
  EXPECT_TRUE(first.was_scanned());
  const Manifest again = open(path);
  EXPECT_FALSE(again.was_scanned());
  EXPECT_EQ(again.fingerprint(), first.fingerprint());
  expect_rows(again, "{1}\n{2}\n");

  const Manifest copy = open(write("b", "{1}\n{2}\n"));  // another path: scanned, but the same index
  EXPECT_EQ(copy.fingerprint(), first.fingerprint());
  EXPECT_EQ(n_files(".rows"), 1U);

  options_.trust_stat = false;
  EXPECT_TRUE(open(path).was_scanned());
}

TEST_F(ManifestTest, AChangedFileIsScannedAnew) {
  const std::string path = write("a", "{1}\n{2}\n");
  const Manifest before = open(path);
  EXPECT_TRUE(before.check_unchanged().ok());
  write("a", "{1}\n{3}\n");  // same size
  ::timespec times[2] = {{100, 0}, {100, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_EQ(before.check_unchanged().reason(), Reason::kManifest);
  const Manifest after = open(path);
  EXPECT_TRUE(after.was_scanned());
  EXPECT_NE(after.fingerprint(), before.fingerprint());
  EXPECT_EQ(row(after, 1), "{3}");
}

TEST_F(ManifestTest, ShrunkFileIsNoticedByRead) {
  const std::string path = write("a", "{1}\n{2}\n");
  const Manifest manifest = open(path);
  fs::resize_file(path, 5);
  std::string buffer;
  EXPECT_EQ(manifest.read(1, buffer).status().reason(), Reason::kManifest);
}

TEST_F(ManifestTest, DamagedIndexIsMadeAgain) {
  const std::string path = write("a", "{1}\n{2}\n");
  std::string rows;
  open(path);
  for (const auto& entry : fs::directory_iterator(options_.index_dir)) {
    if (entry.path().extension() == ".rows") rows = entry.path();
  }
  const auto size = fs::file_size(rows);
  for (const std::uint64_t kept : {std::uint64_t{0}, std::uint64_t{50}, size - 1, size + 3}) {
    fs::resize_file(rows, kept);
    const Manifest manifest = open(path);
    EXPECT_TRUE(manifest.was_scanned()) << kept;
    EXPECT_EQ(row(manifest, 1), "{2}");
    EXPECT_EQ(fs::file_size(rows), size);
  }
  {
    std::fstream file(rows, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(16);
    file.put('\x7F');  // the number of rows
  }
  EXPECT_EQ(open(path).n_rows(), 2U);
}

TEST_F(ManifestTest, ManyBuildersAtOnce) {
  std::string content;
  for (int i = 0; i < 20'000; ++i) content += "{\"row\": " + std::to_string(i) + "}\n";
  const std::string path = write("a", content);
  std::atomic<int> n_good = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        ManifestOptions options;
        options.index_dir = options_.index_dir;
        options.trust_stat = t % 2 == 0;
        const auto manifest = Manifest::open(path, options);
        std::string buffer;
        if (manifest.ok() && manifest->n_rows() == 20'000 && manifest->read(777, buffer).value() == "{\"row\": 777}")
          ++n_good;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(n_good, 80);
  EXPECT_EQ(n_files(".rows"), 1U);
  EXPECT_EQ(n_files(".hint"), 1U);
  std::size_t n_all = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(options_.index_dir)) ++n_all;
  EXPECT_EQ(n_all, 2U) << "temporary files were left";
}

TEST_F(ManifestTest, OneOfManyScansAndFindsTheSidesOfASplitToo) {
  std::string content;
  for (int i = 0; i < 20'000; ++i) content += "{\"row\": " + std::to_string(i) + "}\n";
  const std::string path = write("a", content);
  const auto n_scanned = [&] {
    constexpr int kThreads = 8;
    std::latch all_here(kThreads);
    std::atomic<int> n = 0;
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        all_here.arrive_and_wait();
        const auto manifest = Manifest::open(path, options_);
        ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
        n += manifest->was_scanned() ? 1 : 0;
        EXPECT_EQ(manifest->n_rows(false) + manifest->n_rows(true), 20'000U);
        EXPECT_EQ(manifest->n_rows(true) > 0, options_.split.has_value());
      });
    }
    threads.clear();
    return n.load();
  };
  EXPECT_EQ(n_scanned(), 1);
  EXPECT_EQ(n_scanned(), 0);
  options_.split = SplitRule{.key = "k", .held_out_millionths = 100'000};
  EXPECT_EQ(n_scanned(), 1) << "the index does not know the sides";
  EXPECT_EQ(n_scanned(), 0);
  EXPECT_EQ(n_files(".claim"), 0U);
  for (const auto& entry : fs::directory_iterator(options_.index_dir)) {
    if (entry.path().extension() == ".sides") fs::resize_file(entry.path(), 100);
  }
  EXPECT_EQ(n_scanned(), 1) << "a damaged file";
}

TEST_F(ManifestTest, OfManyFilesFewAreOpen) {
  const auto n_open = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator()); };
  const auto before = n_open();
  for (const RowNumbers numbers : {RowNumbers::kCounted, RowNumbers::kOffsets}) {
    options_.open_files = std::make_shared<OpenFiles>(4);
    options_.row_numbers = numbers;
    std::vector<Manifest> manifests;
    for (int i = 0; i < 40; ++i) {
      manifests.push_back(open(write("part" + std::to_string(i), "x\nrow " + std::to_string(i) + "\n")));
    }
    const std::uint64_t second = numbers == RowNumbers::kCounted ? 1 : 2;
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < 400; ++i) {
          const auto at = static_cast<std::size_t>(i * (t + 1) % 40);
          EXPECT_EQ(row(manifests[at], second), "row " + std::to_string(at));
        }
      });
    }
    threads.clear();
    EXPECT_LE(n_open() - before, 4);
    write("other", "x\nrow other\n");
    fs::rename(dir_ / "other", dir_ / "part7");
    for (int i = 0; i < 4; ++i) row(manifests[static_cast<std::size_t>(i)], second);  // lets go of it
    std::string buffer;
    EXPECT_EQ(manifests[7].read(second, buffer).status().reason(), Reason::kManifest) << "another file was read";
  }
}

TEST_F(ManifestTest, TwoFilesAtOnePathHaveAHintEach) {
  const std::string path = write("a", "1\n2\n");
  const fs::path other = dir_ / "other";
  write("other", "3\n");
  EXPECT_TRUE(open(path).was_scanned());
  fs::rename(path, dir_ / "kept");
  fs::rename(other, path);
  EXPECT_TRUE(open(path).was_scanned());
  fs::rename(path, other);
  fs::rename(dir_ / "kept", path);
  EXPECT_FALSE(open(path).was_scanned());
  EXPECT_EQ(open(path).n_rows(), 2U);
}

TEST_F(ManifestTest, RowsOverTheLimitAreRefusedAndTheOthersAreNot) {
  options_.max_row_bytes = 10;
  const Manifest manifest = open(write("a", "0123456789\n0123456789a\n0123456789abcdef\n0123456789\r\nx"));
  std::string buffer;
  EXPECT_TRUE(manifest.read(0, buffer).ok());
  EXPECT_EQ(manifest.read(1, buffer).status().reason(), Reason::kJsonRowTooLong);
  EXPECT_EQ(manifest.read(2, buffer).status().reason(), Reason::kJsonRowTooLong);
  EXPECT_TRUE(manifest.read(3, buffer).ok());
  EXPECT_EQ(*manifest.read(4, buffer), "x");
}

TEST_F(ManifestTest, DescribesARow) {
  const std::string path = write("syntax.jsonl", "{1}\n\n{2}\n");
  EXPECT_EQ(open(path).describe(1), path + ":3 (byte 5)");
}

TEST_F(ManifestTest, RefusesWhatIsNoFile) {
  EXPECT_EQ(Manifest::open((dir_ / "none").string(), options_).status().reason(), Reason::kManifest);
  EXPECT_EQ(Manifest::open(dir_.string(), options_).status().reason(), Reason::kManifest);
  const std::string path = write("a", "{1}\n");
  options_.index_dir = path;  // a file where a folder should be
  EXPECT_EQ(Manifest::open(path, options_).status().reason(), Reason::kIndexDir);
}

TEST_F(ManifestTest, StopsAndReportsProgress) {
  std::stop_source stop;
  stop.request_stop();
  const std::string path = write("a", "{1}\n");
  EXPECT_EQ(Manifest::open(path, options_, stop.get_token()).status().reason(), Reason::kStopped);
  std::uint64_t seen = 0;
  options_.on_progress = [&](std::uint64_t done, std::uint64_t all) {
    seen = done;
    EXPECT_EQ(all, 4U);
  };
  open(path);
  EXPECT_EQ(seen, 4U);
}

}  // namespace
}  // namespace stoker
