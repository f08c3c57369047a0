#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/pack.h"
#include "engine/loader.h"
#include "engine/small_model_for_test.h"
#include "media/encode_for_test.h"

namespace stoker::testing {

namespace fs = std::filesystem;

inline void write_file(const fs::path& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; }

inline void write_file(const fs::path& path, const std::vector<std::byte>& bytes) {
  write_file(path, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

/// A run over a few rows with pictures, some of them bad: a broken line, and two that only decoding finds.
class RunFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / ("stoker-loader-test-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    write_small_model(STOKER_TESTDATA, folder_ / "model");
    std::string rows;
    for (int n = 0; n < kRows; ++n) {
      const auto pixels = picture(256, n % 2 == 0 ? 256 : 288, static_cast<unsigned>(n));
      auto file = n % 4 == 1 ? encode_png(pixels, false) : encode_jpeg(pixels, {.is_progressive = n % 4 == 2});
      const bool is_late_bad = n == 5 || n == 10;
      if (is_late_bad) file.resize(file.size() / 2);
      write_file(folder_ / (std::to_string(n) + ".img"), file);
      const std::string size =
          is_late_bad || n % 3 == 0 ? R"(, "height": 256, "width": )" + std::to_string(n % 2 == 0 ? 256 : 288) : "";
      rows += R"({"messages": [{"role": "user", "content": [{"type": "image", "image": ")" + std::to_string(n) +
              R"(.img")" + size + R"(}, {"type": "text", "text": "What?"}]}, {"role": "assistant", "content": "Row )" +
              std::to_string(n) + "\"}]}\n";
    }
    rows += "{broken\n";
    write_file(folder_ / "rows.jsonl", rows);
    std::string clips;
    for (int n = 0; n < 9; ++n) {  // of frames of one size; every third clip has a bad one
      const std::string last = n % 3 == 1 ? "10" : std::to_string(n % 2 == 0 ? 4 : 8);
      clips += R"({"messages": [{"role": "user", "content": "<video>)" + std::to_string(n) +
               R"("}, {"role": "assistant", "content": "Clip"}], "videos": [["0.img", "2.img", "6.img", ")" + last +
               ".img\"]]}\n";
    }
    write_file(folder_ / "clips.jsonl", clips);
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static LoaderSettings settings() {
    LoaderSettings s;
    s.output.data = {{.manifest = (folder_ / "rows.jsonl").string(), .media_root = ""}};
    s.output.model = (folder_ / "model").string();
    s.output.seed = 5;
    s.output.window_samples = 6;
    s.output.pack = {.tokens_per_pack = 224, .packs_per_step = 2};
    s.speed = {.cpu_threads = 2, .fetch_concurrency = 4, .prefetch_steps = 2, .memory_limit_bytes = 64U << 20};
    s.bad_samples.max_fraction = 1.0;
    s.bad_samples.ledger = (folder_ / "ledger.jsonl").string();
    s.outage_limit_s = 5;
    s.index_dir = (folder_ / "index").string();
    fs::remove(s.bad_samples.ledger);
    return s;
  }

  static std::unique_ptr<Loader> opened(LoaderSettings s, const Clock& clock = Clock::real()) {
    auto loader = Loader::create(std::move(s), clock);
    EXPECT_TRUE(loader.ok()) << loader.status().to_string();
    for (;;) {
      const auto is_open = (*loader)->open_within(std::chrono::milliseconds(1000));
      EXPECT_TRUE(is_open.ok()) << is_open.status().to_string();
      if (!is_open.ok() || *is_open) return std::move(loader).value();
    }
  }

  /// The next batch, or nothing at the end.
  static std::optional<Batch> next(Loader& loader) {
    for (;;) {
      auto batch = loader.next_within(std::chrono::milliseconds(1000));
      EXPECT_TRUE(batch.ok()) << batch.status().to_string();
      if (!batch.ok() || *batch || loader.is_at_end()) return batch.ok() ? std::move(*batch) : std::nullopt;
    }
  }

  static std::vector<std::string> digests(Loader& loader, std::size_t n) {
    std::vector<std::string> out;
    while (out.size() < n) {
      const auto batch = next(loader);
      if (!batch) break;
      out.push_back(digest_of(*batch));
    }
    return out;
  }

  static std::set<int> lines_of_ledger() {
    std::ifstream in(folder_ / "ledger.jsonl");
    std::set<int> out;
    for (std::string line; std::getline(in, line);) out.insert(std::stoi(line.substr(line.find("\"line\": ") + 8)));
    return out;
  }

  static constexpr int kRows = 14;
  static inline fs::path folder_;
};

}  // namespace stoker::testing
