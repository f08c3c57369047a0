#pragma once

#include "media/decoder.h"
#include "media/row_feeder.h"

namespace stoker {

/// Decodes the primary picture of HEIC and AVIF with libheif, which gives whole pictures (ImageInfo::scratch_bytes).
class HeifDecoder final : public Decoder {
 public:
  HeifDecoder();
  Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, RowSink& sink,
                ImageNotes& notes) override;

 private:
  RowFeeder feeder_;
};

}  // namespace stoker
