#pragma once

#include <memory>

#include "media/decoder.h"

namespace stoker {

/// Decodes BMP as Pillow does. Rows are read where they lie; run-length coded pictures are unpacked whole. See
/// README.md for why this is no library.
class BmpDecoder final : public Decoder {
 public:
  BmpDecoder();
  ~BmpDecoder() override;
  Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, RowSink& sink,
                ImageNotes& notes) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stoker
