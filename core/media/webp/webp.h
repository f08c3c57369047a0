#pragma once

#include <memory>

#include "media/decoder.h"

namespace stoker {

/// Decodes WebP with libwebp: lossy, lossless, with alpha; of an animation the first frame on its canvas. The codec
/// gives whole pictures (ImageInfo::scratch_bytes). Source: what Pillow 13 makes of the same library.
class WebpDecoder final : public Decoder {
 public:
  WebpDecoder();
  ~WebpDecoder() override;
  Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, RowSink& sink,
                ImageNotes& notes) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stoker
