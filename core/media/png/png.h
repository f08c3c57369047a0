#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"
#include "media/decoder.h"
#include "media/row_sink.h"

namespace stoker {

/// Decodes PNG with libspng. The codec sees IHDR, PLTE, tRNS, IDAT and IEND only, so side chunks are never inflated or
/// checked, and an animated PNG is its default picture. Alpha and depth follow ImageOptions; gamma and ICC profiles are
/// never applied. Threads: one decoder per thread. Memory: two rows, kept; interlaced pictures are held whole
/// (ImageInfo::scratch_bytes). Source: ISO/IEC 15948:2004; for the options that follow Pillow, its 13.0.
class PngDecoder final : public Decoder {
 public:
  PngDecoder();
  ~PngDecoder() override;
  PngDecoder(PngDecoder&&) noexcept;
  PngDecoder& operator=(PngDecoder&&) noexcept;

  /// @return kBadSample IMG_TRUNCATED (the file or the pixel stream ends early) or IMG_CORRUPT; or the sink's error.
  Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, RowSink& sink,
                ImageNotes& notes) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stoker
