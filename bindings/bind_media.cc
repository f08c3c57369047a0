#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "array_of.h"
#include "bind.h"
#include "media/image.h"

namespace nb = nanobind;

namespace stoker {
namespace {

using Pixels = nb::ndarray<const std::uint8_t, nb::shape<-1, -1, 3>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, std::uint8_t>;

std::span<const std::byte> span_of(const nb::bytes& data) {
  return {reinterpret_cast<const std::byte*>(data.c_str()), data.size()};
}

Resizer resizer_of(const std::string& name) {
  if (name == "aten") return Resizer::kAten;
  if (name == "pillow13") return Resizer::kPillow13;
  if (name == "pillow12.2") return Resizer::kPillow12_2;
  if (name == "pillow") return Resizer::kPillow;
  if (name == "float") return Resizer::kFloat;
  throw nb::value_error("resizer must be aten, pillow13, pillow12.2, pillow or float");
}

AlphaRule alpha_of(const std::string& name) {
  if (name == "white") return AlphaRule::kWhite;
  if (name == "white-rgba") return AlphaRule::kWhiteRgba;
  if (name == "drop") return AlphaRule::kDrop;
  throw nb::value_error("alpha must be white, white-rgba or drop");
}

nb::list list_of(ImageNotes notes) {
  nb::list names;
  for (std::size_t i = 0; i < kImageNoteCount; ++i) {
    if (notes.has(static_cast<ImageNote>(i)))
      names.append(nb::str(kImageNoteNames[i].data(), kImageNoteNames[i].size()));
  }
  return names;
}

ImageOptions options_of(bool exif, const std::string& alpha, const std::string& grey16, std::int64_t max_pixels,
                        int max_scans) {
  ImageOptions options;
  options.is_exif_applied = exif;
  options.alpha = alpha_of(alpha);
  options.grey16 = grey16 == "scale" ? Grey16Rule::kScale : Grey16Rule::kClip;
  options.limits.max_pixels = max_pixels;
  options.limits.max_scans = max_scans;
  return options;
}

RgbImage image_of(const Pixels& pixels) {
  RgbImage image;
  image.height_px = static_cast<int>(pixels.shape(0));
  image.width_px = static_cast<int>(pixels.shape(1));
  image.pixels.assign(pixels.data(), pixels.data() + pixels.size());
  return image;
}

/// At a multiple of 64, as in a pack's block.
Array empty_patches(const PatchGeometry& to) {
  constexpr std::align_val_t kAlign{64};
  auto* raw = static_cast<std::uint8_t*>(::operator new[](to.n_bytes(), kAlign));
  const nb::capsule owner(raw, [](void* p) noexcept { ::operator delete[](p, kAlign); });
  const auto p = static_cast<std::size_t>(to.patch);
  return Array(raw, {to.n_patches(), 3, p, p}, owner);
}

PatchGeometry geometry_of(std::pair<int, int> target, int patch, int merge) {
  const PatchGeometry to{target.first, target.second, patch, merge};
  if (patch < 1 || merge < 1 || to.height_px < 1 || to.width_px < 1 || to.height_px % (patch * merge) != 0 ||
      to.width_px % (patch * merge) != 0) {
    throw nb::value_error("target sides must be positive multiples of patch * merge");
  }
  return to;
}

nb::dict dict_of(const Probe& probe) {
  nb::dict out;
  if (!probe.is_complete()) out["need"] = nb::make_tuple(probe.need_begin, probe.need_end);
  if (!probe.info) return out;
  const ImageInfo& info = *probe.info;
  out["format"] = str_of(name_of(info.format));
  out["height"] = info.height_px;
  out["width"] = info.width_px;
  out["orientation"] = info.orientation;
  out["interlaced"] = info.interlaced;
  out["scratch_bytes"] = info.scratch_bytes;
  out["notes"] = list_of(info.notes);
  return out;
}

}  // namespace

void bind_media(nb::module_& m) {
  m.def(
      "probe_image",
      [](const nb::bytes& prefix, std::uint64_t total_bytes, std::int64_t max_pixels) {
        ImageLimits limits;
        limits.max_pixels = max_pixels;
        return dict_of(value_or_throw(probe(span_of(prefix), total_bytes, limits)));
      },
      nb::arg("prefix"), nb::arg("total_bytes") = 0, nb::kw_only(), nb::arg("max_pixels") = ImageLimits().max_pixels,
      "What a picture's first bytes say, as a dict; or {'need': (begin, end)}, the bytes that are missing. With both, "
      "only "
      "an orientation behind the pixels is open: give those bytes to finish_probe.");
  m.def(
      "finish_probe",
      [](const nb::bytes& prefix, std::uint64_t total_bytes, const nb::bytes& piece) {
        Probe found = value_or_throw(probe(span_of(prefix), total_bytes, {}));
        if (!found.info) throw nb::value_error("the prefix is too short for a size");
        found.info = finish_probe(found, span_of(piece));
        found.need_end = found.need_begin;
        return dict_of(found);
      },
      nb::arg("prefix"), nb::arg("total_bytes"), nb::arg("piece"),
      "probe_image with the further bytes that it asked for.");
  m.def(
      "decode_image",
      [](const nb::bytes& data, bool exif, const std::string& alpha, const std::string& grey16, std::int64_t max_pixels,
         int max_scans, bool allow_missing_eoi, bool allow_truncated) {
        ImageOptions options = options_of(exif, alpha, grey16, max_pixels, max_scans);
        options.is_end_optional = allow_missing_eoi;
        options.is_truncated_used = allow_truncated;
        auto image = [&] {
          const nb::gil_scoped_release unlocked;
          return decode_rgb(span_of(data), options);
        }();
        return array_of(value_or_throw(std::move(image)));
      },
      nb::arg("data"), nb::kw_only(), nb::arg("exif") = true, nb::arg("alpha") = "white", nb::arg("grey16") = "scale",
      nb::arg("max_pixels") = ImageLimits().max_pixels, nb::arg("max_scans") = ImageLimits().max_scans,
      nb::arg("allow_missing_eoi") = false, nb::arg("allow_truncated") = false,
      "Decodes a picture to a (height, width, 3) uint8 array.");
  m.def(
      "image_notes",
      [](const nb::bytes& data, bool allow_missing_eoi, bool allow_truncated) {
        ImageOptions options;
        options.is_end_optional = allow_missing_eoi;
        options.is_truncated_used = allow_truncated;
        ImageNotes notes;
        value_or_throw(decode_rgb(span_of(data), options, &notes));
        return list_of(notes);
      },
      nb::arg("data"), nb::kw_only(), nb::arg("allow_missing_eoi") = false, nb::arg("allow_truncated") = false,
      "Decodes a picture and says what was odd about it: names as in a loader's report.");
  m.def(
      "resize",
      [](const Pixels& pixels, std::pair<int, int> size, const std::string& resizer) {
        const RgbImage image = image_of(pixels);
        const Resizer chosen = resizer_of(resizer);
        auto resized = [&] {
          const nb::gil_scoped_release unlocked;
          return resize_rgb(image, size.first, size.second, chosen);
        }();
        return array_of(value_or_throw(std::move(resized)));
      },
      nb::arg("pixels").noconvert(), nb::arg("size"), nb::kw_only(), nb::arg("resizer") = "aten",
      "Bicubic resize of a (height, width, 3) uint8 array to (height, width): 'aten' (torchvision backend), "
      "'pillow13', "
      "'pillow12.2', 'pillow' (before 12.2) or 'float'.");
  m.def(
      "image_patches",
      [](const nb::bytes& data, std::pair<int, int> target, int patch, int merge, bool exif, const std::string& alpha,
         const std::string& grey16, const std::string& resizer, std::int64_t max_pixels, int max_scans) {
        const PatchGeometry to = geometry_of(target, patch, merge);
        const Resizer chosen = resizer_of(resizer);
        Array patches = empty_patches(to);
        auto* out = static_cast<std::uint8_t*>(patches.data());
        check_or_throw([&]() -> Status {
          const nb::gil_scoped_release unlocked;
          ImageOptions options = options_of(exif, alpha, grey16, max_pixels, max_scans);
          options.resizer = chosen;
          const auto file = span_of(data);
          STOKER_TRY(const Probe found, probe(file, file.size(), options.limits));
          if (!found.info) return {Reason::kImgTruncated, "ends inside the header"};
          return PatchDecoder().decode(file, *found.info, to, options, out);
        }());
        return patches;
      },
      nb::arg("data"), nb::arg("target"), nb::arg("patch") = 16, nb::arg("merge") = 2, nb::kw_only(),
      nb::arg("exif") = true, nb::arg("alpha") = "white", nb::arg("grey16") = "scale", nb::arg("resizer") = "aten",
      nb::arg("max_pixels") = ImageLimits().max_pixels, nb::arg("max_scans") = ImageLimits().max_scans,
      "An encoded picture as (n_patches, 3, patch, patch) uint8 patches of the upright target size (height, width).");
  m.def(
      "image_patches",
      [](const Pixels& pixels, std::pair<int, int> target, int patch, int merge, const std::string& resizer) {
        const PatchGeometry to = geometry_of(target, patch, merge);
        const Resizer chosen = resizer_of(resizer);
        Array patches = empty_patches(to);
        const RgbImage image = image_of(pixels);
        check_or_throw([&]() -> Status {
          const nb::gil_scoped_release unlocked;
          return PatchDecoder().patches_of(image, to, chosen, static_cast<std::uint8_t*>(patches.data()));
        }());
        return patches;
      },
      nb::arg("pixels").noconvert(), nb::arg("target"), nb::arg("patch") = 16, nb::arg("merge") = 2, nb::kw_only(),
      nb::arg("resizer") = "aten");
}

}  // namespace stoker
