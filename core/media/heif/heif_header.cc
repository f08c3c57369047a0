#include "media/heif/heif_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "media/heif/heif_brand.h"
#include "media/limits.h"

namespace stoker {
namespace {

constexpr std::uint64_t kMostMeta = std::uint64_t{8} << 20;  // a grid of a thousand tiles has some 100 KB
constexpr std::uint64_t kToTheEnd = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kMostSide = 1U << 30;

/// Reads big-endian numbers one after another. Behind the end they are 0, and `is_short` says so.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint64_t number(std::size_t n_bytes) {
    const auto from = bytes(n_bytes);
    std::uint64_t value = 0;
    for (const std::byte byte : from) value = value << 8 | std::to_integer<std::uint64_t>(byte);
    return value;
  }
  std::span<const std::byte> bytes(std::size_t n_bytes) {
    if (bytes_.size() < n_bytes) {
      is_short_ = true;
      bytes_ = {};
      return {};
    }
    const auto first = bytes_.first(n_bytes);
    bytes_ = bytes_.subspan(n_bytes);
    return first;
  }
  std::size_t left() const { return bytes_.size(); }
  bool is_short() const { return is_short_; }

 private:
  std::span<const std::byte> bytes_;
  bool is_short_ = false;
};

struct Box {
  std::string_view type;
  std::uint64_t body = 0;  // offset
  std::uint64_t end = 0;
};

/// The box at `at`; nothing if its header is not all here.
Result<std::optional<Box>> box_at(std::span<const std::byte> bytes, std::uint64_t at) {
  if (at > bytes.size()) return std::optional<Box>();
  Cursor cursor(bytes.subspan(static_cast<std::size_t>(at)));
  std::uint64_t n_bytes = cursor.number(4);
  const auto type = cursor.bytes(4);
  std::uint64_t n_header = 8;
  if (n_bytes == 1) {
    n_bytes = cursor.number(8);
    n_header = 16;
  }
  if (cursor.is_short()) return std::optional<Box>();
  const std::string_view name(reinterpret_cast<const char*>(type.data()), type.size());
  if (n_bytes == 0) return std::optional(Box{name, at + n_header, kToTheEnd});
  if (n_bytes < n_header || n_bytes > kToTheEnd - at) {
    return Status(Reason::kImgCorrupt, fmt::format("HEIF with a box of {} bytes at {}", n_bytes, at));
  }
  return std::optional(Box{name, at + n_header, at + n_bytes});
}

struct Child {
  std::string_view type;
  std::span<const std::byte> body;
};

/// The boxes inside of one.
Result<std::vector<Child>> children(std::span<const std::byte> body) {
  std::vector<Child> out;
  for (std::uint64_t at = 0; at < body.size();) {
    STOKER_TRY(const std::optional<Box> box, box_at(body, at));
    if (!box || (box->end != kToTheEnd && box->end > body.size())) {
      return Status(Reason::kImgCorrupt, "HEIF with a box that ends behind the one that it is in");
    }
    const std::uint64_t end = std::min<std::uint64_t>(box->end, body.size());
    out.push_back(
        {box->type, body.subspan(static_cast<std::size_t>(box->body), static_cast<std::size_t>(end - box->body))});
    at = end;
  }
  return out;
}

/// A box's version and flags, in front of its fields.
std::pair<unsigned, unsigned> version_and_flags(Cursor& cursor) {
  const std::uint64_t both = cursor.number(4);
  return {static_cast<unsigned>(both >> 24), static_cast<unsigned>(both & 0xFFFFFF)};
}

std::uint64_t primary_item(std::span<const std::byte> pitm) {
  Cursor cursor(pitm);
  const auto [version, flags] = version_and_flags(cursor);
  return cursor.number(version == 0 ? 2 : 4);
}

/// Appends the properties of one item, as 1-based indices in their order.
void read_associations(std::span<const std::byte> ipma, std::uint64_t item, std::vector<std::size_t>& indices) {
  Cursor cursor(ipma);
  const auto [version, flags] = version_and_flags(cursor);
  const bool is_wide = (flags & 1) != 0;
  const std::uint64_t n_items = cursor.number(4);
  for (std::uint64_t i = 0; i < n_items && !cursor.is_short(); ++i) {
    const bool is_mine = cursor.number(version == 0 ? 2 : 4) == item;
    const std::uint64_t n = cursor.number(1);
    for (std::uint64_t k = 0; k < n && !cursor.is_short(); ++k) {
      const std::uint64_t index = is_wide ? cursor.number(2) & 0x7FFF : cursor.number(1) & 0x7F;
      if (is_mine && index > 0) indices.push_back(static_cast<std::size_t>(index));
    }
  }
}

/// Where the last byte lies that an item keeps in the file itself.
std::uint64_t items_end(std::span<const std::byte> iloc) {
  Cursor cursor(iloc);
  const auto [version, flags] = version_and_flags(cursor);
  const std::uint64_t sizes = cursor.number(2);
  const auto n_offset = static_cast<std::size_t>(sizes >> 12 & 15);
  const auto n_length = static_cast<std::size_t>(sizes >> 8 & 15);
  const auto n_base = static_cast<std::size_t>(sizes >> 4 & 15);
  const std::size_t n_index = version == 0 ? 0 : static_cast<std::size_t>(sizes & 15);
  const std::uint64_t n_items = cursor.number(version < 2 ? 2 : 4);
  const auto sum = [](std::uint64_t a, std::uint64_t b) { return a > kToTheEnd - b ? kToTheEnd : a + b; };
  std::uint64_t end = 0;
  for (std::uint64_t i = 0; i < n_items && !cursor.is_short(); ++i) {
    cursor.number(version < 2 ? 2 : 4);
    const bool is_in_file = version == 0 || (cursor.number(2) & 15) == 0;
    const bool is_in_this_file = cursor.number(2) == 0;
    const std::uint64_t base = cursor.number(n_base);
    const std::uint64_t n_extents = cursor.number(2);
    for (std::uint64_t k = 0; k < n_extents && !cursor.is_short(); ++k) {
      cursor.number(n_index);
      const std::uint64_t begin = sum(base, cursor.number(n_offset));
      const std::uint64_t extent_end = sum(begin, cursor.number(n_length));
      if (is_in_file && is_in_this_file && !cursor.is_short()) end = std::max(end, extent_end);
    }
  }
  return end;
}

/// The EXIF orientation that comes to the same as a rotation and then a mirroring. Source: Pillow 13, _avif.c.
int orientation_of(unsigned angle, std::optional<unsigned> mirror) {
  static constexpr int kTurned[] = {1, 8, 3, 6};
  static constexpr int kTurnedThenFlipped[] = {4, 5, 2, 7};   // top and bottom exchanged
  static constexpr int kTurnedThenMirrored[] = {2, 7, 4, 5};  // left and right exchanged
  if (!mirror) return kTurned[angle];
  return *mirror == 0 ? kTurnedThenFlipped[angle] : kTurnedThenMirrored[angle];
}

struct Geometry {
  std::uint64_t width = 0;
  std::uint64_t height = 0;
  unsigned angle = 0;  // quarter turns against the clock
  std::optional<unsigned> mirror;
};

/// A side after cropping, as libheif rounds it.
std::uint64_t rounded_side(std::uint64_t numerator, std::uint64_t denominator) {
  return denominator == 0 ? 0 : (numerator + denominator / 2) / denominator;
}

/// Takes what one property says. Of a picture that the codec brings upright, size follows the transformations.
void apply(const Child& property, bool is_upright, Geometry& geometry, ImageNotes& notes) {
  Cursor cursor(property.body);
  if (property.type == "ispe") {
    version_and_flags(cursor);
    geometry.width = cursor.number(4);
    geometry.height = cursor.number(4);
  } else if (property.type == "clap" && is_upright) {
    const std::uint64_t width = cursor.number(4);
    geometry.width = rounded_side(width, cursor.number(4));
    const std::uint64_t height = cursor.number(4);
    geometry.height = rounded_side(height, cursor.number(4));
  } else if (property.type == "irot") {
    geometry.angle = static_cast<unsigned>(cursor.number(1) & 3);
    if (is_upright && geometry.angle % 2 == 1) std::swap(geometry.width, geometry.height);
  } else if (property.type == "imir") {
    geometry.mirror = static_cast<unsigned>(cursor.number(1) & 1);
  } else if (property.type == "colr") {
    const auto kind = cursor.number(4);
    constexpr std::uint64_t kProf = 0x70726F66;
    constexpr std::uint64_t kRicc = 0x72494343;
    if (kind == kProf || kind == kRicc) notes.add(ImageNote::kIccIgnored);
  }
}

/// @param meta  The body of the box.
Result<HeifHeader> read_meta(std::span<const std::byte> meta, const ImageLimits& limits) {
  if (meta.size() < 4) return Status(Reason::kImgCorrupt, "HEIF with an empty box of metadata");
  STOKER_TRY(const std::vector<Child> boxes, children(meta.subspan(4)));
  HeifHeader header;
  std::uint64_t primary = 0;
  std::vector<Child> properties;
  std::vector<std::span<const std::byte>> associations;
  for (const Child& box : boxes) {
    if (box.type == "pitm") primary = primary_item(box.body);
    if (box.type == "iloc") header.items_end = items_end(box.body);
    if (box.type != "iprp") continue;
    STOKER_TRY(const std::vector<Child> parts, children(box.body));
    for (const Child& part : parts) {
      if (part.type == "ipma") associations.push_back(part.body);
      if (part.type != "ipco") continue;
      STOKER_TRY(properties, children(part.body));
    }
  }
  std::vector<std::size_t> mine;
  for (const auto ipma : associations) read_associations(ipma, primary, mine);
  for (const std::size_t index : mine) {
    if (index > properties.size()) return Status(Reason::kImgCorrupt, "HEIF with a property that is not there");
    if (properties[index - 1].type == "av1C") header.is_avif = true;
  }
  ImageInfo& info = header.info;
  info.format = ImageFormat::kHeif;
  Geometry geometry;
  for (const std::size_t index : mine) apply(properties[index - 1], !header.is_avif, geometry, info.notes);
  if (geometry.width == 0 || geometry.height == 0 || geometry.width > kMostSide || geometry.height > kMostSide) {
    return Status(Reason::kImgCorrupt, "HEIF whose primary picture has no size");
  }
  info.height_px = static_cast<int>(geometry.height);
  info.width_px = static_cast<int>(geometry.width);
  STOKER_CHECKED(check_pixels(info.height_px, info.width_px, limits));
  if (header.is_avif) info.orientation = orientation_of(geometry.angle, geometry.mirror);
  // The library gives whole pictures: the codec's frame and its planes, of up to 16 bits, and RGBA.
  info.scratch_bytes = static_cast<std::size_t>(geometry.height * geometry.width) * 16;
  return header;
}

struct Found {
  std::optional<HeifHeader> header;
  std::uint64_t want = 0;  // bytes, without it
};

/// Reads what a prefix has.
Result<Found> find_header(std::span<const std::byte> prefix, const ImageLimits& limits) {
  for (std::uint64_t at = 0;;) {
    STOKER_TRY(const std::optional<Box> box, box_at(prefix, at));
    if (!box) return Found{std::nullopt, at + 16};
    if (box->type == "meta") {
      if (box->end == kToTheEnd || box->end - box->body > kMostMeta) {
        return Status(Reason::kImgCorrupt, fmt::format("HEIF with more than {} bytes of metadata", kMostMeta));
      }
      if (box->end > prefix.size()) return Found{std::nullopt, box->end};
      const auto body =
          prefix.subspan(static_cast<std::size_t>(box->body), static_cast<std::size_t>(box->end - box->body));
      STOKER_TRY(HeifHeader header, read_meta(body, limits));
      const std::string_view brand = major_brand({reinterpret_cast<const char*>(prefix.data()), prefix.size()});
      const bool is_sequence = brand == "avis" || brand == "msf1" || brand.starts_with("hev");
      if (is_sequence) header.info.notes.add(ImageNote::kAnimatedFirstFrame);
      return Found{std::move(header), 0};
    }
    if (box->end == kToTheEnd) return Status(Reason::kImgCorrupt, "HEIF without a box of metadata");
    at = box->end;
  }
}

}  // namespace

bool begins_as_heif(std::string_view bytes) { return heif_brand(major_brand(bytes)) != HeifBrand::kNone; }

Result<HeifHeader> read_heif_header(std::span<const std::byte> file, const ImageLimits& limits) {
  STOKER_TRY(Found found, find_header(file, limits));
  if (!found.header) {
    return Status(Reason::kImgTruncated, fmt::format("HEIF ends at byte {}, inside its boxes", file.size()));
  }
  return *std::move(found.header);
}

Result<Probe> probe_heif(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits) {
  STOKER_TRY(const Found found, find_header(prefix, limits));
  if (!found.header) return need_more(prefix.size(), found.want, total_bytes);
  Probe probe;
  probe.info = found.header->info;
  return probe;
}

}  // namespace stoker
