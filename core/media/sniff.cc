#include "media/sniff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

#include "media/heif/heif_brand.h"

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::size_t kTellingBytes = 18;  ///< every format is told from another by so many
/// How files begin, for those too short to be told otherwise.
constexpr std::array<std::string_view, 4> kSignatures = {"\xFF\xD8\xFF"sv, "\x89PNG\r\n\x1A\n"sv, "GIF87a"sv,
                                                         "GIF89a"sv};

struct Kind {
  std::string_view magic;
  std::string_view name;
};
/// Pictures that this build knows by sight but does not decode.
constexpr std::array<Kind, 4> kOthers = {{{"8BPS"sv, "Photoshop (PSD)"sv},
                                          {"\0\0\0\x0CjP  \r\n\x87\n"sv, "JPEG 2000"sv},
                                          {"\xFF\x0A"sv, "JPEG XL"sv},
                                          {"\0\0\0\x0CJXL \r\n\x87\n"sv, "JPEG XL"sv}}};

/// The first 16 bytes, as hex and as text with dots for what does not print.
std::string shown(std::string_view text) {
  std::string hex;
  std::string plain;
  for (const char ch : text.substr(0, 16)) {
    const auto byte = static_cast<unsigned char>(ch);
    hex += fmt::format("{:02x} ", byte);
    plain += byte >= 0x20 && byte < 0x7F ? ch : '.';
  }
  if (!hex.empty()) hex.pop_back();
  return fmt::format("first bytes {} \"{}\"", hex, plain);
}

bool starts_with_ignoring_case(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() && std::equal(lower.begin(), lower.end(), text.begin(), [](char a, char b) {
           return a == static_cast<char>(std::tolower(static_cast<unsigned char>(b)));
         });
}

bool is_text(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char ch) {
    const auto byte = static_cast<unsigned char>(ch);
    return byte >= 0x20 || byte == '\t' || byte == '\n' || byte == '\r';
  });
}

/// What bytes that are no picture look like, in words.
std::string likeness(std::string_view text) {
  std::string_view body = text;
  if (body.starts_with("\xEF\xBB\xBF"sv)) body.remove_prefix(3);
  while (!body.empty() && std::isspace(static_cast<unsigned char>(body.front())) != 0) body.remove_prefix(1);
  const std::string_view head = body.substr(0, 2048);
  if (head.find("<Error>") != std::string_view::npos) {
    std::string_view code;
    if (const auto at = head.find("<Code>"); at != std::string_view::npos) {
      code = head.substr(at + 6);
      code = code.substr(0, std::min<std::size_t>(code.find('<'), 64));
    }
    return code.empty() ? "S3 error XML" : fmt::format("S3 error XML, Code={}", code);
  }
  if (starts_with_ignoring_case(body, "<!doctype html") || starts_with_ignoring_case(body, "<html")) return "HTML";
  if (starts_with_ignoring_case(body, "<svg")) return "SVG";
  if (starts_with_ignoring_case(body, "<?xml")) return "XML";
  if (body.starts_with('{') && is_text(body.substr(0, 256))) return "JSON";
  if (body.starts_with("version https://git-lfs")) return "a Git LFS pointer";
  if (text.starts_with("%PDF")) return "PDF";
  if (text.starts_with("PK\x03\x04")) return "a ZIP archive";
  if (text.starts_with("\x1F\x8B")) return "gzip data";
  if (is_text(text.substr(0, 256))) return "text";
  if (std::all_of(text.begin(), text.end(), [](char ch) { return ch == 0; })) return "zero bytes";
  return "unknown binary data";
}

/// "HEIF (heic)", "WebP" and so on; empty if it is none of these.
std::string container_name(std::string_view text) {
  if (const std::string_view brand = major_brand(text); !brand.empty()) {
    if (const HeifBrand kind = heif_brand(brand); kind != HeifBrand::kNone) {
      return fmt::format("{} ({})", kind == HeifBrand::kAvif ? "AVIF" : "HEIF", brand);
    }
    return is_text(brand) ? fmt::format("ISO media, a video ({})", brand) : std::string("ISO media");
  }
  for (const Kind& kind : kOthers) {
    if (text.starts_with(kind.magic)) return std::string(kind.name);
  }
  return {};
}

}  // namespace

Result<const FormatEntry*> sniff(std::span<const std::byte> prefix, bool is_whole) {
  const std::string_view text(reinterpret_cast<const char*>(prefix.data()), prefix.size());
  for (const FormatEntry& format : formats()) {
    if (format.begins(text)) return &format;
  }
  if (text.size() < kTellingBytes && !is_whole) return nullptr;
  const bool is_cut = std::any_of(kSignatures.begin(), kSignatures.end(),
                                  [text](std::string_view signature) { return signature.starts_with(text); });
  const bool is_short_bmp = text.starts_with("BM") && text.size() < kTellingBytes && !is_text(text);
  if ((is_cut && !text.empty()) || is_short_bmp) {
    return Status(Reason::kImgTruncated, fmt::format("ends after {} bytes, inside the signature", text.size()));
  }
  if (const std::string name = container_name(text); !name.empty()) {
    const bool is_option = heif_brand(major_brand(text)) != HeifBrand::kNone;
    return Status(Reason::kImgUnsupported,
                  fmt::format("{} not supported by this build{}; {}", name,
                              is_option ? " (built with STOKER_HEIF it is, see docs/data.md)" : "", shown(text)));
  }
  return Status(Reason::kImgNotAnImage, fmt::format("looks like {}; {}", likeness(text), shown(text)));
}

}  // namespace stoker
