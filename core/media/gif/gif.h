#pragma once

#include <memory>

#include "media/decoder.h"

namespace stoker {

/// Decodes the first frame of a GIF, placed on its logical screen as Pillow shows it. Rows flow; an interlaced frame is
/// held whole. See README.md for why this is no library.
class GifDecoder final : public Decoder {
 public:
  GifDecoder();
  ~GifDecoder() override;
  Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, RowSink& sink,
                ImageNotes& notes) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stoker
