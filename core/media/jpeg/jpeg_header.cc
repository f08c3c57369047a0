#include "media/jpeg/jpeg_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "media/exif.h"
#include "media/limits.h"

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

constexpr int kEoi = 0xD9;
constexpr int kSos = 0xDA;
constexpr int kApp1 = 0xE1;
constexpr int kApp2 = 0xE2;
constexpr int kMaxComponents = 4;

bool is_frame_header(int marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}
bool is_standalone(int marker) { return marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8); }

int byte_at(std::span<const std::byte> bytes, std::size_t at) { return std::to_integer<int>(bytes[at]); }
int word_at(std::span<const std::byte> bytes, std::size_t at) {
  return byte_at(bytes, at) << 8 | byte_at(bytes, at + 1);
}

/// What a frame header says.
struct Frame {
  ImageInfo info;
  bool is_there = false;
  int n_components = 0;
  std::size_t coefficient_bytes = 0;  ///< of the whole picture, kept while scans come in
};

Result<Frame> read_frame(int marker, std::span<const std::byte> body, const ImageLimits& limits) {
  Frame frame;
  const Status damaged(Reason::kImgCorrupt, "JPEG frame header is damaged");
  if (body.size() < 6) return damaged;
  const int precision = byte_at(body, 0);
  frame.info.height_px = word_at(body, 1);
  frame.info.width_px = word_at(body, 3);
  frame.n_components = byte_at(body, 5);
  const bool is_known = marker == 0xC0 || marker == 0xC1 || marker == 0xC2 || marker == 0xC9 || marker == 0xCA;
  if (!is_known) return Status(Reason::kImgUnsupported, fmt::format("JPEG process SOF{} not supported", marker - 0xC0));
  if (precision != 8)
    return Status(Reason::kImgUnsupported, fmt::format("JPEG with {} bits per sample not supported", precision));
  if (frame.info.width_px == 0) return damaged;
  if (frame.info.height_px == 0)
    return Status(Reason::kImgUnsupported, "JPEG with its height after the pixels (DNL) not supported");
  if (frame.n_components != 1 && frame.n_components != 3 && frame.n_components != kMaxComponents) {
    return Status(Reason::kImgUnsupported, fmt::format("JPEG with {} components not supported", frame.n_components));
  }
  if (body.size() < 6 + 3 * static_cast<std::size_t>(frame.n_components)) return damaged;
  STOKER_CHECKED(check_pixels(frame.info.height_px, frame.info.width_px, limits));
  if (frame.info.height_px > 65500 || frame.info.width_px > 65500) {
    return Status(Reason::kImgTooLarge,
                  fmt::format("{}x{}: a side above 65500", frame.info.width_px, frame.info.height_px));
  }

  frame.is_there = true;
  frame.info.format = ImageFormat::kJpeg;
  frame.info.interlaced = marker == 0xC2 || marker == 0xCA;
  int h_max = 1;
  int v_max = 1;
  for (int i = 0; i < frame.n_components; ++i) {
    const int sampling = byte_at(body, 7 + 3 * static_cast<std::size_t>(i));
    if ((sampling >> 4) < 1 || (sampling >> 4) > 4 || (sampling & 15) < 1 || (sampling & 15) > 4) return damaged;
    h_max = std::max(h_max, sampling >> 4);
    v_max = std::max(v_max, sampling & 15);
  }
  for (int i = 0; i < frame.n_components; ++i) {
    const int sampling = byte_at(body, 7 + 3 * static_cast<std::size_t>(i));
    const auto mcu_columns = static_cast<std::size_t>((frame.info.width_px + 8 * h_max - 1) / (8 * h_max));
    const auto mcu_rows = static_cast<std::size_t>((frame.info.height_px + 8 * v_max - 1) / (8 * v_max));
    const std::size_t blocks =
        mcu_columns * static_cast<std::size_t>(sampling >> 4) * mcu_rows * static_cast<std::size_t>(sampling & 15);
    frame.coefficient_bytes += blocks * 64 * sizeof(std::int16_t);
  }
  return frame;
}

/// Position of the next marker's code at or behind `at`, or the prefix's size.
std::size_t next_marker(std::span<const std::byte> bytes, std::size_t at) {
  while (at + 1 < bytes.size()) {
    const void* found = std::memchr(bytes.data() + at, 0xFF, bytes.size() - at - 1);
    if (found == nullptr) break;
    at = static_cast<std::size_t>(static_cast<const std::byte*>(found) - bytes.data()) + 1;
    while (at < bytes.size() && byte_at(bytes, at) == 0xFF) ++at;  // fill bytes
    if (at < bytes.size() && byte_at(bytes, at) != 0) return at;
  }
  return bytes.size();
}

}  // namespace

Result<Probe> probe_jpeg(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits) {
  Frame frame;
  Orientation orientation;
  ImageNotes notes;
  for (std::size_t at = next_marker(prefix, 2);; at = next_marker(prefix, at)) {
    if (at >= prefix.size()) return need_more(prefix.size(), prefix.size() + 1, total_bytes);
    const int marker = byte_at(prefix, at);
    if (marker == kEoi) return Status(Reason::kImgCorrupt, fmt::format("JPEG ends at byte {} without a picture", at));
    if (is_standalone(marker)) {
      ++at;
      continue;
    }
    if (at + 3 > prefix.size()) return need_more(prefix.size(), at + 3, total_bytes);
    const auto length = static_cast<std::size_t>(word_at(prefix, at + 1));
    if (length < 2) return Status(Reason::kImgCorrupt, fmt::format("JPEG segment without a length at byte {}", at));
    const std::size_t end = at + 1 + length;
    if (end > prefix.size()) return need_more(prefix.size(), end, total_bytes);
    const std::span<const std::byte> body = prefix.subspan(at + 3, length - 2);
    if (is_frame_header(marker)) {
      if (frame.is_there) return Status(Reason::kImgCorrupt, "JPEG with two frame headers");
      STOKER_TRY(frame, read_frame(marker, body, limits));
    } else if (marker == kApp1) {
      const std::string_view text(reinterpret_cast<const char*>(body.data()), body.size());
      if (text.starts_with("Exif\0\0"sv)) {
        orientation.add_exif(body, notes);
      } else if (text.starts_with("http://ns.adobe.com/xap/1.0/\0"sv)) {
        orientation.set_xmp(body);
      }
    } else if (marker == kApp2) {
      const std::string_view text(reinterpret_cast<const char*>(body.data()), body.size());
      if (text.starts_with("ICC_PROFILE\0"sv)) notes.add(ImageNote::kIccIgnored);
      if (text.starts_with("MPF\0"sv)) notes.add(ImageNote::kMorePictures);
    } else if (marker == kSos) {
      if (!frame.is_there || body.empty()) return Status(Reason::kImgCorrupt, "JPEG scan without a frame header");
      frame.info.interlaced = frame.info.interlaced || byte_at(body, 0) < frame.n_components;
      frame.info.scratch_bytes = frame.info.interlaced ? frame.coefficient_bytes : 0;
      frame.info.orientation = orientation.value();
      frame.info.notes = notes;
      Probe probe;
      probe.info = frame.info;
      return probe;
    }
    at = end;
  }
}

int count_scans(std::span<const std::byte> bytes, int limit) {
  int n_scans = 1;
  for (std::size_t at = next_marker(bytes, 0); at + 2 < bytes.size() && n_scans <= limit; at = next_marker(bytes, at)) {
    const int marker = byte_at(bytes, at);
    if (marker == kEoi) break;
    if (is_standalone(marker)) {
      ++at;
      continue;
    }
    n_scans += marker == kSos ? 1 : 0;
    at += 1 + static_cast<std::size_t>(word_at(bytes, at + 1));
  }
  return n_scans;
}

}  // namespace stoker
