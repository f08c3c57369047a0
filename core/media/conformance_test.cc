#include "media/conformance.h"

#include <random>

namespace stoker::testing {

TEST_P(DecoderConformance, DecodesTheWholeFileAgainAndAgain) {
  const DecodeInto decode = GetParam().make();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(run(decode, GetParam().file, kAll).ok());
}

TEST_P(DecoderConformance, RefusesAFileCutAnywhere) {
  const DecodeInto decode = GetParam().make();
  const std::span<const std::byte> whole = GetParam().file;
  for (std::size_t n = 0; n < whole.size() - GetParam().n_spare; n += 1 + n / 256) {
    const std::vector<std::byte> cut(
        whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(n));  // so that a sanitizer sees its end
    const Status status = run(decode, cut, kAll);
    EXPECT_EQ(status.code(), Code::kBadSample) << "kept " << n << " bytes: " << status.to_string();
    if (n >= 16) {
      EXPECT_EQ(status.reason(), Reason::kImgTruncated) << "kept " << n << " bytes: " << status.to_string();
    }
  }
  EXPECT_TRUE(run(decode, whole, kAll).ok()) << "still works after failures";
}

TEST_P(DecoderConformance, StopsWhenItsSinkDoes) {
  const DecodeInto decode = GetParam().make();
  for (const int max_pairs : {1, 2, 5}) {
    int n_pairs = 0;
    EXPECT_EQ(run(decode, GetParam().file, max_pairs, &n_pairs).reason(), Reason::kStopped);
    EXPECT_EQ(n_pairs, max_pairs);
  }
  EXPECT_TRUE(run(decode, GetParam().file, kAll).ok());
}

/// Whatever the bytes: an answer, and only of the kinds that mean a bad picture. Sanitizers do the rest.
TEST_P(DecoderConformance, SurvivesDamage) {
  const DecodeInto decode = GetParam().make();
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> file = GetParam().file;
    const auto n_changes = 1 + random() % 4;
    for (unsigned k = 0; k < n_changes; ++k) file[random() % file.size()] = static_cast<std::byte>(random() % 256);
    const auto found = probe(file, file.size(), {});
    if (found.ok() && found->info && std::int64_t{found->info->height_px} * found->info->width_px > (1 << 20)) continue;
    const Status status = run(decode, file, kAll);
    EXPECT_TRUE(status.ok() || status.code() == Code::kBadSample) << status.to_string();
  }
  EXPECT_TRUE(run(decode, GetParam().file, kAll).ok());
}

}  // namespace stoker::testing
