#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "media/image.h"
#include "media/row_sink.h"

namespace stoker {

/// Decodes the pictures of one format. What each owes stands in conformance_test.cc; formats.cc lists them.
class Decoder {
 public:
  virtual ~Decoder() = default;

  /// @param file   The encoded object, whole; borrowed for the call.
  /// @param info   What the format's probe said about these bytes, under the same limits.
  /// @param sink   Gets the rows as stored, alpha and depth dealt with as `options` say. An error of it ends the
  /// decoding
  ///               and is returned.
  /// @param notes  Gets what was odd and not to be seen in the header.
  /// @return kBadSample IMG_TRUNCATED if the file ends early, IMG_CORRUPT if it is damaged, IMG_UNSUPPORTED; what the
  ///         sink got until then is void. The codec neither prints nor leaves by exception, longjmp or abort.
  /// Threads: one decoder per thread. Memory: kept between pictures; what grows with the picture is in
  ///         ImageInfo::scratch_bytes, or a few rows.
  virtual Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                        RowSink& sink, ImageNotes& notes) = 0;
};

}  // namespace stoker
