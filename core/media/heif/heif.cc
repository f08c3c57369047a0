#include "media/heif/heif.h"

#include <fmt/format.h>
#include <libheif/heif.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <memory>
#include <new>
#include <string_view>

#include "media/heif/heif_header.h"

namespace stoker {
namespace {

template <auto release>
struct Release {
  template <typename T>
  void operator()(T* it) const {
    release(it);
  }
};
using Context = std::unique_ptr<heif_context, Release<heif_context_free>>;
using Handle = std::unique_ptr<heif_image_handle, Release<heif_image_handle_release>>;
using Image = std::unique_ptr<heif_image, Release<heif_image_release>>;
using DecodingOptions = std::unique_ptr<heif_decoding_options, Release<heif_decoding_options_free>>;

Status failure(const heif_error& error) {
  const std::string text = fmt::format("HEIF: {}", error.message == nullptr ? "the codec fails" : error.message);
  if (error.subcode == heif_suberror_Security_limit_exceeded) return {Reason::kImgTooLarge, text};
  switch (error.code) {
    case heif_error_Unsupported_filetype:
    case heif_error_Unsupported_feature:
    case heif_error_Plugin_loading_error:
      return {Reason::kImgUnsupported, text};
    case heif_error_Memory_allocation_error:
      return {Reason::kImgTooLarge, text};
    default:
      return {Reason::kImgCorrupt, text};
  }
}

/// The AV1 decoder to ask for: libaom, where the library has it, because dav1d prints; else null, whichever there is.
const char* quiet_av1_decoder() {
  static const char* const found = [] {
    std::array<const heif_decoder_descriptor*, 8> decoders{};
    const int n =
        heif_get_decoder_descriptors(heif_compression_AV1, decoders.data(), static_cast<int>(decoders.size()));
    for (int i = 0; i < n; ++i) {
      const char* const name = heif_decoder_descriptor_get_id_name(decoders[static_cast<std::size_t>(i)]);
      if (name != nullptr && std::string_view(name) == "aom") return name;
    }
    return static_cast<const char*>(nullptr);
  }();
  return found;
}

struct Picture {
  Image image;
  const std::uint8_t* rows = nullptr;  // (height, width, 4) in rows of `stride`
  std::size_t stride = 0;
  bool has_alpha = false;
};

/// Lets the library decode the primary picture to 8 bits of RGBA.
Result<Picture> decode_primary(std::span<const std::byte> file, const HeifHeader& header, const ImageLimits& limits,
                               ImageNotes& notes) {
  const Context context(heif_context_alloc());
  if (!context) return Status(Reason::kInternal, "HEIF: no memory for the codec");
  heif_context_set_max_decoding_threads(context.get(), 0);  // the caller's thread only
  // The library takes the side of a square.
  const auto side = static_cast<int>(std::min(std::ceil(std::sqrt(static_cast<double>(limits.max_pixels))), 46340.0));
  heif_context_set_maximum_image_size_limit(context.get(), side);
  heif_error error = heif_context_read_from_memory_without_copy(context.get(), file.data(), file.size(), nullptr);
  if (error.code != heif_error_Ok) return failure(error);
  heif_image_handle* raw_handle = nullptr;
  error = heif_context_get_primary_image_handle(context.get(), &raw_handle);
  const Handle handle(raw_handle);
  if (error.code != heif_error_Ok) return failure(error);
  if (heif_context_get_number_of_top_level_images(context.get()) > 1) notes.add(ImageNote::kMorePictures);

  Picture picture;
  picture.has_alpha = heif_image_handle_has_alpha_channel(handle.get()) != 0;
  if (picture.has_alpha && heif_image_handle_is_premultiplied_alpha(handle.get()) != 0) {
    return Status(Reason::kImgUnsupported, "HEIF with premultiplied alpha");
  }
  const DecodingOptions options(heif_decoding_options_alloc());
  if (!options) return Status(Reason::kInternal, "HEIF: no memory for the codec");
  options->ignore_transformations = header.is_avif ? 1 : 0;
  options->convert_hdr_to_8bit = 1;
  options->strict_decoding = 1;
  if (header.is_avif) options->decoder_id = quiet_av1_decoder();
  heif_image* raw_image = nullptr;
  error = heif_decode_image(handle.get(), &raw_image, heif_colorspace_RGB, heif_chroma_interleaved_RGBA, options.get());
  picture.image.reset(raw_image);
  if (error.code != heif_error_Ok) return failure(error);
  if (heif_image_get_primary_height(raw_image) != header.info.height_px ||
      heif_image_get_primary_width(raw_image) != header.info.width_px) {
    return Status(Reason::kImgCorrupt, "HEIF whose picture has another size than its header says");
  }
  int stride = 0;
  picture.rows = heif_image_get_plane_readonly(raw_image, heif_channel_interleaved, &stride);
  if (picture.rows == nullptr) return Status(Reason::kImgCorrupt, "HEIF without pixels");
  picture.stride = static_cast<std::size_t>(stride);
  return picture;
}

/// The library is C++ behind a C face: what it throws comes through.
Result<Picture> decode_caught(std::span<const std::byte> file, const HeifHeader& header, const ImageLimits& limits,
                              ImageNotes& notes) {
  try {
    return decode_primary(file, header, limits, notes);
  } catch (const std::bad_alloc&) {
    return Status(Reason::kImgTooLarge, "HEIF: the codec wants more memory than there is");
  } catch (const std::exception& thrown) {
    return Status(Reason::kImgCorrupt, fmt::format("HEIF: {}", thrown.what()));
  }
}

}  // namespace

HeifDecoder::HeifDecoder() {
  static const heif_error loaded = heif_init(nullptr);  // codecs that are plugins; never unloaded
  static_cast<void>(loaded);                            // without one, decoding says what is missing
}

Status HeifDecoder::decode(std::span<const std::byte> file, const ImageInfo& info, const ImageOptions& options,
                           RowSink& sink, ImageNotes& notes) {
  STOKER_TRY(const HeifHeader header, read_heif_header(file, options.limits));
  if (header.items_end > file.size()) {
    return {Reason::kImgTruncated, fmt::format("HEIF ends at byte {} of {}", file.size(), header.items_end)};
  }
  if (header.info.height_px != info.height_px || header.info.width_px != info.width_px) {
    return {Reason::kInternal, "HEIF with the header of another file"};
  }
  STOKER_TRY(const Picture picture, decode_caught(file, header, options.limits, notes));
  const bool blends = picture.has_alpha && is_blended(options.alpha, true);
  return feeder_.feed(info.height_px, info.width_px, sink, [&](int y, const RowFeeder::Planes& to) -> Status {
    split_rgba(picture.rows + static_cast<std::size_t>(y) * picture.stride, info.width_px, blends, to);
    return {};
  });
}

}  // namespace stoker
