#pragma once

// What every decoder owes (the claims stand in conformance_test.cc). A decoder's test includes this and instantiates
// DecoderConformance with its own files.

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "media/image.h"
#include "media/row_sink.h"

namespace stoker::testing {

/// Runs one decoder, and nothing else, on a file.
using DecodeInto = std::function<Status(std::span<const std::byte>, const ImageInfo&, RowSink&, ImageNotes&)>;

struct DecoderCase {
  std::string name;
  std::function<DecodeInto()> make;
  std::vector<std::byte> file;
  std::size_t n_spare = 0;  ///< bytes at the end that no pixel needs: without them the picture is accepted
};

/// A decoder of one kind, kept between pictures.
template <typename T>
DecodeInto decoder_of() {
  return [decoder = std::make_shared<T>()](std::span<const std::byte> file, const ImageInfo& info, RowSink& sink,
                                           ImageNotes& notes) { return decoder->decode(file, info, {}, sink, notes); };
}

/// Checks the order of rows and reads every byte that it may read; ends the decoding after `max_pairs`.
class CountingSink final : public RowSink {
 public:
  CountingSink(int height_px, int width_px, int max_pairs)
      : height_(height_px), width_(width_px), max_pairs_(max_pairs) {}
  Status take(int first, const RowPair& pair) override {
    EXPECT_EQ(first, 2 * n_pairs_);
    EXPECT_LT(first, height_);
    for (const auto& row : pair.rows) {
      for (const std::uint8_t* plane : row) {
        for (int x = 0; x < width_ + kRowSlackBytes; ++x) sum_ += plane[x];
      }
    }
    ++n_pairs_;
    if (n_pairs_ >= max_pairs_) return {Reason::kStopped, "enough"};
    return {};
  }
  int n_pairs() const { return n_pairs_; }

 private:
  int height_;
  int width_;
  int max_pairs_;
  int n_pairs_ = 0;
  unsigned sum_ = 0;
};

class DecoderConformance : public ::testing::TestWithParam<DecoderCase> {
 protected:
  static constexpr int kAll = 1 << 30;

  /// Probes and decodes, as the pipeline does.
  static Status run(const DecodeInto& decode, std::span<const std::byte> file, int max_pairs, int* n_pairs = nullptr) {
    const auto found = probe(file, file.size(), {});
    if (!found.ok()) return found.status();
    if (!found->info) return {Reason::kImgTruncated, "the probe wants more than there is"};
    CountingSink sink(found->info->height_px, found->info->width_px, max_pairs);
    ImageNotes notes;
    Status status = decode(file, *found->info, sink, notes);
    if (n_pairs != nullptr) *n_pairs = sink.n_pairs();
    if (status.ok()) {
      EXPECT_EQ(sink.n_pairs(), (found->info->height_px + 1) / 2);
    }
    return status;
  }
};

}  // namespace stoker::testing
