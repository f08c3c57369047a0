#pragma once

#include <memory>

#include "media/decoder.h"

namespace stoker {

/// Decodes the first picture of a TIFF with libtiff, 8 bits and below, strip by strip or one row of tiles at a time.
/// Source: TIFF 6.0; which layouts are taken and how they become RGB: Pillow 13, TiffImagePlugin.
class TiffDecoder final : public Decoder {
 public:
  TiffDecoder();
  ~TiffDecoder() override;
  Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, RowSink& sink,
                ImageNotes& notes) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stoker
