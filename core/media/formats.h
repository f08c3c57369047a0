#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "media/decoder.h"
#include "media/image.h"

namespace stoker {

/// One format that this build decodes. Adding one: a folder, a line in formats.cc, a test with DecoderConformance.
struct FormatEntry {
  ImageFormat format;
  bool (*begins)(std::string_view bytes);  ///< whether a file that begins so is of this format
  Result<Probe> (*probe)(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits);
  /// Looks for an orientation behind the pixels (`finish_probe`); may be null.
  void (*read_tail)(std::span<const std::byte> piece, ImageInfo& info);
  std::unique_ptr<Decoder> (*make)();
};

/// All of them.
std::span<const FormatEntry> formats();

/// The entry of a format; nullptr if this build does not decode it.
const FormatEntry* find_format(ImageFormat format);

}  // namespace stoker
