#include "source/data/data_url.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "source/url.h"

namespace stoker {
namespace {

constexpr std::string_view kScheme = "data:";
constexpr std::string_view kBase64 = ";base64";
constexpr std::uint8_t kNone = 0xFF;
constexpr std::uint8_t kSkipped = 0xFE;

constexpr std::array<std::uint8_t, 256> make_values() {
  std::array<std::uint8_t, 256> values{};
  for (std::uint8_t& v : values) v = kNone;
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  }
  values['-'] = 62;  // the alphabet for URLs
  values['_'] = 63;
  for (const char c : {' ', '\t', '\r', '\n'}) values[static_cast<unsigned char>(c)] = kSkipped;
  return values;
}
constexpr std::array<std::uint8_t, 256> kValues = make_values();

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

// The text after ",", if the URL says that it is base64.
Result<std::string_view> text_of(std::string_view url) {
  const std::size_t comma = url.find(',');
  if (comma == std::string_view::npos) {
    return Status(Reason::kMediaData, shown_media(url) + ": a data: URL without a comma");
  }
  const std::string_view head = url.substr(0, comma);
  if (head.size() < kBase64.size() || !equal_ignoring_case(head.substr(head.size() - kBase64.size()), kBase64)) {
    return Status(Reason::kMediaData,
                  shown_media(url) + ": a data: URL that is not base64; it should begin data:image/png;base64,");
  }
  return url.substr(comma + 1);
}

}  // namespace

bool is_data_url(std::string_view reference) {
  return equal_ignoring_case(reference.substr(0, kScheme.size()), kScheme);
}

std::uint64_t data_url_bytes(std::string_view url) {
  const std::size_t comma = url.find(',');
  return comma == std::string_view::npos ? 0 : (url.size() - comma - 1) / 4 * 3 + 2;
}

Result<Buffer> decode_data_url(std::string_view url, std::uint64_t max_bytes) {
  STOKER_TRY(const std::string_view text, text_of(url));
  if (text.size() / 4 * 3 > max_bytes) {
    return Status(Reason::kMediaTooLarge, fmt::format("{}: {} characters of base64 are more than the limit of {} bytes",
                                                      shown_media(url), text.size(), max_bytes));
  }
  std::size_t n_digits = 0;
  std::size_t end = text.size();
  while (end > 0 && (text[end - 1] == '=' || kValues[static_cast<unsigned char>(text[end - 1])] == kSkipped)) --end;
  for (std::size_t i = 0; i < end; ++i) {
    const std::uint8_t value = kValues[static_cast<unsigned char>(text[i])];
    if (value == kNone) {
      return Status(Reason::kMediaData, fmt::format("{}: byte 0x{:02X} at {} is not base64", shown_media(url),
                                                    static_cast<unsigned char>(text[i]),
                                                    static_cast<std::size_t>(text.data() - url.data()) + i));
    }
    n_digits += value == kSkipped ? 0 : 1;
  }
  if (n_digits % 4 == 1) {
    return Status(Reason::kMediaData, fmt::format("{}: base64 of {} characters, which is no whole number of bytes",
                                                  shown_media(url), n_digits));
  }
  Buffer out(n_digits * 3 / 4);
  auto* to = reinterpret_cast<std::uint8_t*>(out.data());
  std::uint32_t word = 0;
  int n_in_word = 0;
  for (std::size_t i = 0; i < end; ++i) {
    const std::uint8_t value = kValues[static_cast<unsigned char>(text[i])];
    if (value == kSkipped) continue;
    word = word << 6 | value;
    if (++n_in_word < 4) continue;
    *to++ = static_cast<std::uint8_t>(word >> 16);
    *to++ = static_cast<std::uint8_t>(word >> 8);
    *to++ = static_cast<std::uint8_t>(word);
    word = 0;
    n_in_word = 0;
  }
  if (n_in_word == 3) {
    *to++ = static_cast<std::uint8_t>(word >> 10);
    *to++ = static_cast<std::uint8_t>(word >> 2);
  } else if (n_in_word == 2) {
    *to++ = static_cast<std::uint8_t>(word >> 4);
  }
  return out;
}

Result<FetchedObject> DataSource::read(const FetchRequest& request, const Location& at, std::stop_token) const {
  STOKER_TRY(Buffer whole, decode_data_url(at.key, max_object_bytes_));
  FetchedObject object;
  object.total_bytes = whole.size();
  const std::uint64_t begin = std::min<std::uint64_t>(request.offset, whole.size());
  const std::uint64_t n_bytes = std::min<std::uint64_t>(request.length.value_or(UINT64_MAX), whole.size() - begin);
  if (n_bytes == whole.size()) {
    object.bytes = std::move(whole);
    return object;
  }
  STOKER_TRY(object.bytes, make_buffer(request.lease_for, static_cast<std::size_t>(n_bytes)));
  if (n_bytes > 0) std::memcpy(object.bytes.data(), whole.data() + begin, static_cast<std::size_t>(n_bytes));
  return object;
}

}  // namespace stoker
