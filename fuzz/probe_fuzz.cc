// What is asked about a picture while only pieces of its object are known: the kind of file, size and orientation from
// a prefix, orientation from a piece behind the pixels, and the metadata blocks by themselves. The first three bytes
// say how long the prefix is and how large the object claims to be, which may be a lie.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "media/exif.h"
#include "media/formats.h"
#include "media/image.h"
#include "media/sniff.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

void check_info(const stoker::ImageInfo& info, const stoker::ImageLimits& limits) {
  require(info.height_px > 0 && info.width_px > 0 && info.orientation >= 1 && info.orientation <= 8);
  require(std::int64_t{info.height_px} * info.width_px <= limits.max_pixels);
}

/// Asks as the loader does: the prefix grows by what is said to be missing, as far as there are bytes.
void ask(std::span<const std::byte> file, std::size_t n_prefix, std::uint64_t total_bytes) {
  const stoker::ImageLimits limits;
  while (true) {
    const auto found = stoker::probe(file.first(n_prefix), total_bytes, limits);
    if (!found.ok()) return require(found.status().code() == stoker::Code::kBadSample);
    if (found->info) check_info(*found->info, limits);
    if (found->is_complete()) return;
    require(found->need_begin < found->need_end);
    require(total_bytes == 0 || found->need_end <= total_bytes);
    if (found->info) {
      // Not these bytes but those of another object, or fewer than were asked for: an answer all the same.
      check_info(stoker::finish_probe(*found, file.subspan(std::min<std::size_t>(file.size(), n_prefix / 2))), limits);
      const std::size_t begin = std::min<std::uint64_t>(file.size(), found->need_begin);
      const std::size_t end = std::min<std::uint64_t>(file.size(), found->need_end);
      return check_info(stoker::finish_probe(*found, file.subspan(begin, end - begin)), limits);
    }
    require(found->need_begin == n_prefix);  // it goes on where the prefix ends
    if (n_prefix == file.size()) return;
    n_prefix = std::min<std::uint64_t>(file.size(), found->need_end);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 3) return 0;
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data) + 3, size - 3);
  const std::size_t n_prefix = std::min<std::size_t>(file.size(), data[0] + data[1] * std::size_t{256});
  const std::uint64_t sizes[] = {file.size(), 0, n_prefix, file.size() + data[2], std::uint64_t{data[2]} << 56};
  ask(file, n_prefix, sizes[data[2] % 5]);

  const auto kind = stoker::sniff(file, data[2] % 2 == 0);
  if (!kind.ok()) require(kind.status().code() == stoker::Code::kBadSample && kind.status().message().size() < 400);
  const auto orientation = stoker::exif_orientation(file);
  require(!orientation || (*orientation >= 0 && *orientation <= 8));
  const int xmp = stoker::xmp_orientation(file);
  require(xmp >= 0 && xmp <= 8);
  return 0;
}
