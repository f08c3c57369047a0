#include "source/data/data_url.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "base/rng.h"
#include "source/url.h"

namespace stoker {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 40;

std::string text_of(const Buffer& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

std::string decoded(std::string_view url) {
  auto bytes = decode_data_url(url, kNoLimit);
  return bytes.ok() ? text_of(*bytes) : std::string(name_of(bytes.status().reason()));
}

std::string encoded(std::string_view bytes, bool is_padded) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; ++k) word = word << 8 | (k < n ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k <= n; ++k) out += kAlphabet[word >> (18 - 6 * k) & 63];
    if (is_padded) out.append(3 - n, '=');
  }
  return out;
}

TEST(DataUrl, TakesWhatTheWildHas) {
  EXPECT_EQ(decoded("data:image/png;base64,QUJD"), "ABC");
  EXPECT_EQ(decoded("data:;base64,QUI="), "AB");
  EXPECT_EQ(decoded("data:image/png;base64,QUI"), "AB");
  EXPECT_EQ(decoded("data:image/jpeg;name=a.jpg;BASE64,QQ=="), "A");
  EXPECT_EQ(decoded("DATA:image;base64,QQ"), "A");
  EXPECT_EQ(decoded("data:image/png;base64,QU\nJD\r\n REVG\n"), "ABCDEF");
  EXPECT_EQ(decoded("data:image/png;base64,-_-_"), decoded("data:image/png;base64,+/+/"));
  EXPECT_EQ(decoded("data:image/png;base64,"), "");
}

TEST(DataUrl, RefusesTheRest) {
  for (const char* url :
       {"data:", "data:image/png", "data:image/png,ABC", "data:image/png;base64,A", "data:image/png;base64,AB=C",
        "data:image/png;base64,QUJD%3D", "data:image/png;base64,\xC3\xA9"}) {
    EXPECT_EQ(decoded(url), "MEDIA_DATA") << url;
  }
  const std::string long_url = "data:image/png;base64," + std::string(1'000'000, '!');
  const auto refused = decode_data_url(long_url, kNoLimit);
  ASSERT_FALSE(refused.ok());
  EXPECT_LT(refused.status().message().size(), 200U);
  const auto too_large = decode_data_url("data:;base64," + std::string(4000, 'A'), 100);
  ASSERT_FALSE(too_large.ok());
  EXPECT_EQ(too_large.status().reason(), Reason::kMediaTooLarge);
}

TEST(DataUrl, GivesBackEveryByte) {
  Rng rng(3);
  for (std::size_t n = 0; n < 200; ++n) {
    std::string bytes;
    for (std::size_t i = 0; i < n; ++i) bytes += static_cast<char>(rng.next());
    for (const bool is_padded : {true, false}) {
      const std::string url = "data:image/png;base64," + encoded(bytes, is_padded);
      EXPECT_EQ(decoded(url), bytes);
      EXPECT_GE(data_url_bytes(url), bytes.size());
      EXPECT_LE(data_url_bytes(url), bytes.size() + 4);
    }
  }
}

TEST(DataUrl, IsShownByItsBeginning) {
  const std::string url = "data:image/png;base64," + std::string(3'000'000, 'A');
  EXPECT_EQ(shown_media(url), url.substr(0, 64) + "... (3000022 characters)");
  EXPECT_EQ(shown_media("images/a.png"), "images/a.png");
  EXPECT_LT(shown_media("/root/" + std::string(5000, 'x')).size(), 100U);
}

}  // namespace
}  // namespace stoker
