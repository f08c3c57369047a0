#include "manifest/unpack.h"

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "manifest/claim.h"
#include "manifest/files.h"
#include "manifest/index.h"

namespace stoker {
namespace {

namespace fs = std::filesystem;

std::string gzip(std::string_view text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(std::string_view text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

class UnpackTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("stoker-unpack-" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) + "-" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string put(const std::string& name, std::string_view bytes) const {
    const fs::path path = folder_ / name;
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path.string();
  }
  Result<Manifest> open(const std::string& path, bool has_index = true) const {
    ManifestOptions options;
    if (has_index) options.index_dir = (folder_ / "index").string();
    return Manifest::open(path, options);
  }

  fs::path folder_;
};

std::string rows_text() {
  Rng rng(1);
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "{\"n\": " + std::to_string(i) + ", \"s\": \"" +
            std::string(rng.next() % 2000, static_cast<char>('a' + rng.next() % 26)) + "\"}";
    text += i % 7 == 0 ? "\r\n\n" : "\n";
  }
  return text;
}

TEST_F(UnpackTest, PackedRowsAreThePlainOnes) {
  const std::string text = rows_text();
  auto plain = open(put("plain.jsonl", text));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->form(), "JSONL");
  const std::string half = text.substr(0, text.size() / 2);
  const std::string rest = text.substr(text.size() / 2);
  const std::vector<std::pair<std::string, std::string>> packed = {
      {"JSONL in gzip", gzip(text)},
      {"JSONL in gzip", gzip(half) + gzip(rest) + std::string(100, '\0')},
      {"JSONL in zstd", zstd(text)},
      {"JSONL in zstd", std::string("\x50\x2A\x4D\x18\x02\x00\x00\x00zz", 10) + zstd(half) + zstd(rest)}};
  int i = 0;
  for (const auto& [form, bytes] : packed) {
    const std::string path = put("packed" + std::to_string(i++) + ".txt", bytes);
    for (const bool has_index : {false, true, true}) {
      auto manifest = open(path, has_index);
      ASSERT_TRUE(manifest.ok()) << manifest.status().message();
      EXPECT_EQ(manifest->form(), form);
      EXPECT_EQ(manifest->fingerprint(), plain->fingerprint());
      ASSERT_EQ(manifest->n_rows(), plain->n_rows());
      std::string a;
      std::string b;
      for (std::uint64_t row = 0; row < plain->n_rows(); row += 97) {
        EXPECT_EQ(*manifest->read(row, a), *plain->read(row, b));
        EXPECT_EQ(manifest->row(row).offset, plain->row(row).offset);
        EXPECT_EQ(manifest->row(row).line, plain->row(row).line);
      }
      EXPECT_TRUE(manifest->check_unchanged().ok());
    }
  }
}

TEST_F(UnpackTest, ListsAreReadElementByElement) {
  std::string text = "[";
  std::vector<std::string> elements;
  for (int i = 0; i < 70'000; ++i) {
    elements.push_back("{\"n\":\n " + std::to_string(i) + "}");
    text += (i == 0 ? "\n" : " ,\n") + elements.back();
  }
  text += "\n]\n";
  for (const std::string& bytes : {text, gzip(text), zstd(text)}) {
    const std::string path = put("list", bytes);
    for (const bool has_index : {false, true, true}) {
      auto manifest = open(path, has_index);
      ASSERT_TRUE(manifest.ok()) << manifest.status().message();
      ASSERT_EQ(manifest->n_rows(), elements.size());
      std::string buffer;
      for (std::uint64_t row = 0; row < elements.size(); row += 999) {
        const RowLocation at = manifest->row(row);
        EXPECT_EQ(text.substr(at.offset, at.n_bytes), elements[row]);
        EXPECT_EQ(at.line, 2 * row + 2);
        std::string wanted = elements[row];
        wanted[5] = ' ';
        EXPECT_TRUE(manifest->read(row, buffer)->starts_with(wanted)) << *manifest->read(row, buffer);
        EXPECT_NE(manifest->describe(row).find("list:" + std::to_string(at.line)), std::string::npos);
      }
    }
    fs::remove(path);
  }
}

TEST_F(UnpackTest, DamageIsRefusedAndNothingIsKept) {
  const std::string text = rows_text();
  const std::string zipped = gzip(text);
  const std::string zstandard = zstd(text);
  std::string flipped = zipped;
  flipped[zipped.size() - 6] = static_cast<char>(flipped[zipped.size() - 6] ^ 0x55);  // in its checksum
  std::string hurt = zstandard;
  for (std::size_t i = 100; i < 140; ++i) hurt[i] = static_cast<char>(0xFF);
  for (const std::string& bytes :
       {zipped.substr(0, zipped.size() / 2), zipped + "more", flipped, zstandard.substr(0, zstandard.size() - 3), hurt,
        std::string("[{\"a\": 1}, "), gzip("[1, 2")}) {
    const auto manifest = open(put("damaged", bytes));
    ASSERT_FALSE(manifest.ok());
    EXPECT_EQ(manifest.status().reason(), Reason::kManifest);
    EXPECT_NE(manifest.status().message().find("damaged: "), std::string::npos) << "the file is called damaged";
    EXPECT_TRUE(fs::is_empty(folder_ / "index" / "unpacked"));
  }
}

TEST_F(UnpackTest, AChangedFileIsUnpackedAgain) {
  const std::string path = put("rows", gzip("{\"a\": 1}\n"));
  auto before = open(path);
  ASSERT_TRUE(before.ok());
  put("rows", gzip("{\"a\": 1}\n{\"a\": 2}\n"));
  EXPECT_EQ(before->check_unchanged().reason(), Reason::kManifest);
  auto after = open(path);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->n_rows(), 2U);
  std::string buffer;
  EXPECT_EQ(*before->read(0, buffer), "{\"a\": 1}") << "what was opened stays readable";
}

TEST_F(UnpackTest, EmptyFiles) {
  for (const std::string& bytes : {std::string(), gzip(""), zstd(""), gzip(" \n"), std::string("[]")}) {
    const auto manifest = open(put("empty", bytes));
    ASSERT_TRUE(manifest.ok()) << manifest.status().message();
    EXPECT_EQ(manifest->n_rows(), 0U);
  }
}

TEST_F(UnpackTest, WaitsForWhoeverUnpacksAndTakesOverFromTheDead) {
  const std::string path = put("rows.gz", gzip("{\"a\": 1}\n{\"a\": 2}\n"));
  ManifestOptions options;
  options.index_dir = (folder_ / "index").string();
  options.claim = {.beat = std::chrono::milliseconds(5),
                   .lease = std::chrono::milliseconds(60),
                   .look = std::chrono::milliseconds(1)};
  fs::create_directories(options.index_dir);
  const std::string claimed = hint_path(options.index_dir, path, *stamp_of(path), "unpacked") + ".claim";
  std::optional<std::unique_ptr<Claim>> held = *Claim::take(
      claimed, [] { return false; }, {}, {}, options.claim);
  (*held)->tell(7, 9);
  int n_heard = 0;
  std::stop_source stop;
  options.on_progress = [&](std::uint64_t n_done, std::uint64_t n_all) {
    EXPECT_EQ(n_done, 7U);
    EXPECT_EQ(n_all, 9U);
    ++n_heard;
    stop.request_stop();
  };
  EXPECT_EQ(Manifest::open(path, options, stop.get_token()).status().reason(), Reason::kStopped);
  EXPECT_EQ(n_heard, 1);
  held.reset();
  std::ofstream(claimed) << "somebody who died";
  options.on_progress = {};
  const auto manifest = Manifest::open(path, options);
  ASSERT_TRUE(manifest.ok()) << manifest.status().to_string();
  EXPECT_EQ(manifest->n_rows(), 2U);
  EXPECT_FALSE(fs::exists(claimed));
}

}  // namespace
}  // namespace stoker
