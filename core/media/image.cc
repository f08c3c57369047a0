#include "media/image.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "media/float_resampler.h"
#include "media/formats.h"
#include "media/limits.h"
#include "media/resampler.h"
#include "media/sniff.h"
#include "media/targets.h"

namespace stoker {
namespace {

constexpr int kFirstTransposed = 5;  // orientations 5 to 8

Status check_geometry(const PatchGeometry& to) {
  const int factor = to.patch * to.merge;
  if (to.patch >= 1 && to.merge >= 1 && to.height_px >= factor && to.width_px >= factor && to.height_px % factor == 0 &&
      to.width_px % factor == 0) {
    return {};
  }
  return {Reason::kInternal,
          fmt::format("{}x{} is no grid of patches of {} merged by {}", to.width_px, to.height_px, to.patch, to.merge)};
}

bool is_on_its_side(const ImageInfo& info, const ImageOptions& options) {
  return info.applied_orientation(options.is_exif_applied) >= kFirstTransposed;
}

/// What the resampler does with a picture as it is stored; sizes are those of the upright one.
ResampleJob job_of(Resizer resizer, int orientation, int upright_height, int upright_width, int height, int width) {
  const bool is_vertical = is_vertical_first(resizer, upright_height, upright_width, height, width);
  ResampleJob job;
  job.weights = resizer == Resizer::kAten ? Weights::kInt16 : Weights::k22Bits;
  if (orientation < kFirstTransposed) {
    job.source_height = upright_height;
    job.source_width = upright_width;
    job.height = height;
    job.width = width;
    job.mirror = {orientation == 2 || orientation == 3, orientation == 3 || orientation == 4};
    job.is_down_first = is_vertical;
  } else {
    // Stored rows are upright columns: the picture is resized as it lies, and the target turns it.
    job.source_height = upright_width;
    job.source_width = upright_height;
    job.height = width;
    job.width = height;
    job.mirror = {orientation >= 7, orientation == 6 || orientation == 7};
    job.is_down_first = !is_vertical;
  }
  return job;
}

/// Everything one thread needs to bring pictures into any target; kept between pictures.
class Pipeline {
 public:
  /// @param target  One that turns, if the picture is on its side.
  Status run(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, int height, int width,
             RowTarget& target) {
    notes_ = info.notes;
    resampler_.start(job_of(options.resizer, info.applied_orientation(options.is_exif_applied),
                            info.upright_height_px(options.is_exif_applied),
                            info.upright_width_px(options.is_exif_applied), height, width),
                     target);
    STOKER_CHECKED(decode(file, info, options, resampler_));
    finish_streams();
    if (!resampler_.is_complete()) return {Reason::kInternal, "a decoder ended without all rows"};
    return {};
  }

  Status run(const RgbImage& image, Resizer resizer, int height, int width, RowTarget& target) {
    if (resizer == Resizer::kFloat) {
      float_resampler_.start(image.height_px, image.width_px, height, width, target);
      return send(image, float_resampler_);
    }
    resampler_.start(job_of(resizer, 1, image.height_px, image.width_px, height, width), target);
    STOKER_CHECKED(send(image, resampler_));
    finish_streams();
    return {};
  }

  /// The whole picture in its own size, upright when `options.is_exif_applied`.
  Result<RgbImage> picture(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options) {
    RgbImage image;
    image.height_px = info.upright_height_px(options.is_exif_applied);
    image.width_px = info.upright_width_px(options.is_exif_applied);
    image.pixels.resize(static_cast<std::size_t>(image.height_px) * static_cast<std::size_t>(image.width_px) * 3);
    ImageTarget target(image, is_on_its_side(info, options));
    STOKER_CHECKED(run(file, info, options, image.height_px, image.width_px, target));
    return image;
  }

  ImageNotes notes() const { return notes_; }

 private:
  Status send(const RgbImage& image, RowSink& sink) {
    const auto n = static_cast<std::size_t>(image.width_px);
    const std::size_t stride = round_up(n, 64) + kRowSlackBytes;
    auto* rows = rows_.get<std::uint8_t>(6 * stride);
    for (int y = 0; y < image.height_px; y += 2) {
      RowPair pair{};
      for (std::size_t i = 0; i < 2; ++i) {
        const auto row = static_cast<std::size_t>(std::min(y + static_cast<int>(i), image.height_px - 1));
        for (std::size_t c = 0; c < 3; ++c) {
          std::uint8_t* to = rows + (i * 3 + c) * stride;
          for (std::size_t x = 0; x < n; ++x) to[x] = image.pixels[(row * n + x) * 3 + c];
          pair.rows[i][c] = to;
        }
      }
      STOKER_CHECKED(sink.take(y, pair));
    }
    return {};
  }

  Status decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options, RowSink& sink) {
    auto& decoder = decoders_[static_cast<std::size_t>(info.format)];
    if (!decoder) {
      const FormatEntry* entry = find_format(info.format);
      if (entry == nullptr) return {Reason::kInternal, "a picture was probed that this build does not decode"};
      decoder = entry->make();
    }
    return decoder->decode(file, info, options, sink, notes_);
  }

  std::array<std::unique_ptr<Decoder>, kImageFormatCount> decoders_;  // made when first needed
  ImageNotes notes_;
  Resampler resampler_;
  FloatResampler float_resampler_;
  Scratch rows_;
};

}  // namespace

Result<Probe> probe(std::span<const std::byte> prefix, std::uint64_t total_bytes, const ImageLimits& limits) {
  if (prefix.empty() && total_bytes == 0) return Status(Reason::kImgEmpty, "0 bytes");
  STOKER_TRY(const FormatEntry* format, sniff(prefix, total_bytes != 0 && prefix.size() >= total_bytes));
  if (format == nullptr) return need_more(prefix.size(), prefix.size() + 1, total_bytes);
  STOKER_TRY(Probe found, format->probe(prefix, total_bytes, limits));
  return found;
}

ImageInfo finish_probe(const Probe& probed, std::span<const std::byte> piece) {
  ImageInfo info = *probed.info;
  const FormatEntry* format = find_format(info.format);
  if (format == nullptr || format->read_tail == nullptr) return info;
  format->read_tail(piece, info);
  return info;
}

struct PatchDecoder::Impl {
  Pipeline pipeline;
  PatchTarget target;
  TurnedPatchTarget turned_target;
};

PatchDecoder::PatchDecoder() : impl_(std::make_unique<Impl>()) {}
PatchDecoder::~PatchDecoder() = default;
PatchDecoder::PatchDecoder(PatchDecoder&&) noexcept = default;
PatchDecoder& PatchDecoder::operator=(PatchDecoder&&) noexcept = default;

Status PatchDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const PatchGeometry& to,
                            const ImageOptions& options, std::uint8_t* patches) {
  STOKER_CHECKED(check_geometry(to));
  if (options.resizer == Resizer::kFloat) {
    STOKER_TRY(const RgbImage upright, impl_->pipeline.picture(file, info, options));
    return patches_of(upright, to, options.resizer, patches);
  }
  if (is_on_its_side(info, options)) {
    impl_->turned_target.start(to, patches);
    return impl_->pipeline.run(file, info, options, to.height_px, to.width_px, impl_->turned_target);
  }
  impl_->target.start(to, patches);
  return impl_->pipeline.run(file, info, options, to.height_px, to.width_px, impl_->target);
}

ImageNotes PatchDecoder::notes() const { return impl_->pipeline.notes(); }

Status PatchDecoder::patches_of(const RgbImage& image, const PatchGeometry& to, Resizer resizer,
                                std::uint8_t* patches) {
  STOKER_CHECKED(check_geometry(to));
  impl_->target.start(to, patches);
  return impl_->pipeline.run(image, resizer, to.height_px, to.width_px, impl_->target);
}

Result<RgbImage> decode_rgb(std::span<const std::byte> file, const ImageOptions& options, ImageNotes* notes) {
  STOKER_TRY(const Probe found, probe(file, file.size(), options.limits));
  if (!found.info) return Status(Reason::kImgTruncated, fmt::format("ends at byte {}, inside the header", file.size()));
  Pipeline pipeline;
  STOKER_TRY(RgbImage image, pipeline.picture(file, *found.info, options));
  if (notes != nullptr) *notes = pipeline.notes();
  return image;
}

Result<RgbImage> resize_rgb(const RgbImage& image, int height_px, int width_px, Resizer resizer) {
  if (image.height_px < 1 || image.width_px < 1 || height_px < 1 || width_px < 1)
    return Status(Reason::kInternal, "a side is not positive");
  RgbImage resized;
  resized.height_px = height_px;
  resized.width_px = width_px;
  resized.pixels.resize(static_cast<std::size_t>(height_px) * static_cast<std::size_t>(width_px) * 3);
  ImageTarget target(resized);
  Pipeline pipeline;
  STOKER_CHECKED(pipeline.run(image, resizer, height_px, width_px, target));
  return resized;
}

}  // namespace stoker
