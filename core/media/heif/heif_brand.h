#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace stoker {

/// What an ISO base media file is, by the brand that its first box names. Source: ISO/IEC 23008-12, annex B; AVIF 1.1.
enum class HeifBrand : unsigned char { kNone, kHeif, kAvif };

inline HeifBrand heif_brand(std::string_view brand) {
  using std::string_view_literals::operator""sv;
  constexpr std::array kHeif = {"heic"sv, "heix"sv, "heim"sv, "heis"sv, "hevc"sv, "hevx"sv,
                                "hevm"sv, "hevs"sv, "mif1"sv, "mif2"sv, "msf1"sv};
  if (brand == "avif" || brand == "avis") return HeifBrand::kAvif;
  return std::find(kHeif.begin(), kHeif.end(), brand) != kHeif.end() ? HeifBrand::kHeif : HeifBrand::kNone;
}

/// The brand of a file that begins so; empty if it begins otherwise or is shorter than 12 bytes.
inline std::string_view major_brand(std::string_view file) {
  return file.size() >= 12 && file.substr(4, 4) == "ftyp" ? file.substr(8, 4) : std::string_view();
}

}  // namespace stoker
