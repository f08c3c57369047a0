#include "media/image.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "media/encode_for_test.h"
#include "media/exif.h"
#include "media/formats.h"

namespace stoker {
namespace {

using std::string_view_literals::operator""sv;

std::span<const std::byte> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST(Probe, NamesWhatIsNoPicture) {
  struct Row {
    std::string_view text;
    Reason reason;
    std::string_view says;
  };
  const bool has_heif = find_format(ImageFormat::kHeif) != nullptr;
  for (const Row& row : {
           Row{""sv, Reason::kImgEmpty, "0 bytes"},
           Row{"<!DOCTYPE html>\n<html>"sv, Reason::kImgNotAnImage, "HTML"},
           Row{"\n  <HTML><body>"sv, Reason::kImgNotAnImage, "HTML"},
           Row{"error code: 502"sv, Reason::kImgNotAnImage, "text"},
           Row{"<?xml version=\"1.0\"?>\n<Error><Code>NoSuchKey</Code></Error>"sv, Reason::kImgNotAnImage,
               "S3 error XML, Code=NoSuchKey"},
           Row{"{\"a\": 1}"sv, Reason::kImgNotAnImage, "JSON"},
           Row{"version https://git-lfs.github.com/spec/v1\noid"sv, Reason::kImgNotAnImage, "Git LFS"},
           Row{"\0\0\0\x18"
               "ftypheic\0\0\0\0mif1heic"sv,
               has_heif ? Reason::kImgTruncated : Reason::kImgUnsupported,
               has_heif ? "header" : "HEIF (heic) not supported by this build (built with STOKER_HEIF it is"},
           Row{"\0\0\0\x18"
               "ftypavif\0\0\0\0mif1"sv,
               has_heif ? Reason::kImgTruncated : Reason::kImgUnsupported, has_heif ? "header" : "AVIF (avif)"},
           Row{"RIFF\x24\0\0\0WEBPVP8 "sv, Reason::kImgTruncated, "header"},
           Row{"GIF89a\x20\0\x20\0"sv, Reason::kImgTruncated, "header"},
           Row{"BM\x36\x0c\0\0"sv, Reason::kImgTruncated, "signature"},
           Row{"II*\0\x08\0\0\0"sv, Reason::kImgTruncated, "header"},
           Row{"\x89PN"sv, Reason::kImgTruncated, "signature"},
           Row{"\0\0\0\0\0\0\0\0"sv, Reason::kImgNotAnImage, "zero bytes"},
       }) {
    const auto found = probe(bytes_of(row.text), row.text.size(), {});
    ASSERT_FALSE(found.ok()) << row.text;
    EXPECT_EQ(found.status().reason(), row.reason) << found.status().to_string();
    EXPECT_NE(found.status().message().find(row.says), std::string::npos) << found.status().to_string();
  }
}

/// Byte by byte, a prefix never says anything else than the whole file, and always asks for bytes that exist.
TEST(Probe, AnyPrefixAgreesWithTheWhole) {
  for (const auto& file : {testing::encode_jpeg(testing::picture(30, 40, 1), {.orientation = 6}),
                           testing::encode_png(testing::picture(30, 40, 1), false)}) {
    const auto whole = probe(file, file.size(), {});
    ASSERT_TRUE(whole.ok() && whole->info);
    bool is_found = false;
    for (std::size_t n = 0; n <= file.size(); ++n) {
      const auto part = probe(std::span(file).first(n), file.size(), {});
      ASSERT_TRUE(part.ok()) << n << ": " << part.status().to_string();
      if (part->info) {
        is_found = true;
        EXPECT_EQ(part->info->height_px, 30);
        ImageInfo info = *part->info;
        if (!part->is_complete()) {
          ASSERT_LE(part->need_end, file.size());
          info = finish_probe(*part, std::span(file).subspan(part->need_begin, part->need_end - part->need_begin));
        }
        EXPECT_EQ(info.orientation, whole->info->orientation);
        EXPECT_EQ(info.scratch_bytes, whole->info->scratch_bytes);
      } else {
        EXPECT_FALSE(is_found) << "found with less";
        EXPECT_EQ(part->need_begin, n);
        EXPECT_GT(part->need_end, n);
        EXPECT_LE(part->need_end, file.size());
      }
    }
    EXPECT_TRUE(is_found);
  }
}

TEST(Probe, AsksWithoutKnowingTheSize) {
  const auto file = testing::encode_jpeg(testing::picture(30, 40, 1), {});
  const auto part = probe(std::span(file).first(10), 0, {});
  ASSERT_TRUE(part.ok() && !part->info);
  EXPECT_EQ(part->need_begin, 10U);
  EXPECT_GT(part->need_end, 10U);
}

std::string tiff(bool is_little, int tag, int type, int count, int value) {
  const auto put = [&](std::string& to, int v, int n) {
    for (int i = 0; i < n; ++i) to += static_cast<char>(v >> 8 * (is_little ? i : n - 1 - i));
  };
  std::string block = is_little ? std::string("II*\0", 4) : std::string("MM\0*", 4);
  put(block, 8, 4);
  put(block, 1, 2);
  put(block, tag, 2);
  put(block, type, 2);
  put(block, count, 4);
  put(block, value, type == 3 ? 2 : 4);
  if (type == 3) block += std::string(2, '\0');
  return block + std::string(4, '\0');
}

TEST(Exif, ReadsOrientationAndNothingElse) {
  for (const bool is_little : {true, false}) {
    for (int value = 0; value <= 10; ++value) {
      const int want = value >= 1 && value <= 8 ? value : 0;
      EXPECT_EQ(exif_orientation(bytes_of(tiff(is_little, 0x112, 3, 1, value))), want);
      EXPECT_EQ(exif_orientation(bytes_of(tiff(is_little, 0x112, 4, 1, value))), want);
    }
    EXPECT_EQ(exif_orientation(bytes_of("Exif\0\0Exif\0\0" + tiff(is_little, 0x112, 3, 1, 6))), std::nullopt)
        << "no header where C strings end";
    EXPECT_EQ(exif_orientation(bytes_of(std::string("Exif\0\0Exif\0\0", 12) + tiff(is_little, 0x112, 3, 1, 6))), 6);
    EXPECT_EQ(exif_orientation(bytes_of(tiff(is_little, 0x113, 3, 1, 6))), 0);
    EXPECT_EQ(exif_orientation(bytes_of(tiff(is_little, 0x112, 2, 1, 6))), 0) << "a text";
    EXPECT_EQ(exif_orientation(bytes_of(tiff(is_little, 0x112, 1, 1, 6))), 0)
        << "a byte, which Pillow takes for a text";
    EXPECT_EQ(exif_orientation(bytes_of(tiff(is_little, 0x112, 3, 2, 6))), 6) << "the first of two";
    EXPECT_EQ(exif_orientation(bytes_of(tiff(is_little, 0x112, 3, 3, 6))), 0) << "three, and elsewhere";
    const std::string whole = tiff(is_little, 0x112, 3, 1, 6);
    for (std::size_t n = 0; n + 4 < whole.size(); ++n)
      EXPECT_EQ(exif_orientation(bytes_of(std::string_view(whole).substr(0, n))).value_or(0), 0) << n;
  }
}

TEST(Exif, TheFirstBlockThatIsNotEmptyCounts) {
  const std::string six = std::string("Exif\0\0", 6) + tiff(true, 0x112, 3, 1, 6);
  const std::string three = std::string("Exif\0\0", 6) + tiff(true, 0x112, 3, 1, 3);
  const std::string empty("Exif\0\0", 6);
  const auto read = [](std::initializer_list<std::string> blocks) {
    Orientation orientation;
    ImageNotes notes;
    for (const std::string& block : blocks) orientation.add_exif(bytes_of(block), notes);
    return std::pair(orientation.value(), notes.has(ImageNote::kExifUnreadable));
  };
  EXPECT_EQ(read({six, three}), std::pair(6, false));
  EXPECT_EQ(read({empty, six}), std::pair(6, true));
  EXPECT_EQ(read({empty + "xx", six}), std::pair(1, true)) << "nor does Pillow look further";
  EXPECT_EQ(read({empty + six}), std::pair(6, true));
  EXPECT_EQ(read({empty + empty + six}), std::pair(1, true));
}

TEST(Exif, ReadsXmp) {
  EXPECT_EQ(xmp_orientation(bytes_of("<rdf tiff:Orientation=\"6\"/>")), 6);
  EXPECT_EQ(xmp_orientation(bytes_of("<tiff:Orientation>3</tiff:Orientation>")), 3);
  EXPECT_EQ(xmp_orientation(bytes_of("<tiff:Orientation>9</tiff:Orientation>")), 0);
  EXPECT_EQ(xmp_orientation(bytes_of("tiff:Orientation")), 0);
}

}  // namespace
}  // namespace stoker
