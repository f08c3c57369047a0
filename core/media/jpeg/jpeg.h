#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"
#include "media/decoder.h"
#include "media/row_sink.h"

namespace stoker {

/// Decodes JPEG with libjpeg-turbo, bit-equal to its default output (and so to Pillow's). The usual YCbCr layouts leave
/// the library before upsampling and are finished by our own kernels; all others go through its scanlines. Threads: one
/// decoder per thread. Memory: strip buffers, kept; coefficient buffers of pictures in several scans are the library's
/// and counted in ImageInfo::scratch_bytes. Source: ITU-T T.81; libjpeg-turbo 2.1.5; for CMYK, Pillow's Convert.c.
class JpegDecoder final : public Decoder {
 public:
  JpegDecoder();
  ~JpegDecoder() override;
  JpegDecoder(JpegDecoder&&) noexcept;
  JpegDecoder& operator=(JpegDecoder&&) noexcept;

  /// @return kBadSample IMG_TRUNCATED (also where only the end marker is missing, unless `options` allow it),
  /// IMG_CORRUPT
  ///         (the codec lost data or sync, or more than 64 stray bytes), IMG_TOO_MANY_SCANS, IMG_UNSUPPORTED; or the
  ///         sink's error.
  Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, RowSink& sink,
                ImageNotes& notes) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stoker
