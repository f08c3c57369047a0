// One picture of one format (STOKER_FUZZ_FORMAT: there is a target for each): probed in growing pieces, decoded whole
// and to patches. The probe, whatever the length of its piece, must not contradict itself, and the two decoders must
// agree on whether the file is good.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "media/image.h"
#include "media/sniff.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

/// What the whole says is good is never called bad from a piece of it, and sizes stay.
void check_pieces(std::span<const std::byte> file, const stoker::ImageInfo& info, const stoker::ImageLimits& limits) {
  for (std::size_t n = 1; n < file.size(); n = n * 2 + 1) {
    const auto part = stoker::probe(file.first(n), file.size(), limits);
    require(part.ok());
    if (!part->is_complete()) require(part->need_begin < part->need_end && part->need_end <= file.size());
    if (!part->info) continue;
    require(part->info->height_px == info.height_px && part->info->width_px == info.width_px);
    if (part->is_complete()) {
      require(part->info->orientation == info.orientation);
      continue;
    }
    const auto piece = file.subspan(part->need_begin, part->need_end - part->need_begin);
    const auto finished = stoker::finish_probe(*part, piece);
    require(finished.orientation >= 1 && finished.orientation <= 8);
    require(finished.width_px == info.width_px);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto format = stoker::sniff(file, true);
  if (!format.ok() || (*format)->format != stoker::ImageFormat::STOKER_FUZZ_FORMAT) return 0;
  stoker::ImageOptions options;
  options.limits.max_pixels = 1 << 18;  // the fuzzer's time is for parsing, not for large pictures
  options.limits.max_scans = 20;

  const auto whole = stoker::probe(file, size, options.limits);
  if (!whole.ok()) {
    require(whole.status().code() == stoker::Code::kBadSample);
    require(!stoker::decode_rgb(file, options).ok());
    return 0;
  }
  // The whole file leaves nothing to fetch.
  require(whole->info.has_value());
  const stoker::ImageInfo& info = *whole->info;
  require(info.height_px > 0 && info.width_px > 0 && info.orientation >= 1 && info.orientation <= 8);
  check_pieces(file, info, options.limits);

  const auto rgb = stoker::decode_rgb(file, options);
  if (rgb.ok()) {
    require(rgb->height_px == info.upright_height_px() && rgb->width_px == info.upright_width_px());
  } else {
    require(rgb.status().code() == stoker::Code::kBadSample);
  }
  stoker::PatchGeometry to;
  to.height_px = 64;
  to.width_px = 96;
  std::vector<std::uint8_t> patches(to.n_bytes());
  static thread_local stoker::PatchDecoder decoder;
  const auto status = decoder.decode(file, info, to, options, patches.data());
  require(status.ok() == rgb.ok());
  if (!status.ok()) {
    require(status.reason() == rgb.status().reason());
    return 0;
  }
  // What the decoder had before changes nothing: tables left over from another file would.
  std::vector<std::uint8_t> again(to.n_bytes());
  require(stoker::PatchDecoder().decode(file, info, to, options, again.data()).ok());
  require(patches == again);
  return 0;
}
