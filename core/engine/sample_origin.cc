#include "engine/sample_origin.h"

#include <fmt/format.h>

#include <string_view>

#include "manifest/row.h"
#include "source/url.h"

namespace stoker {

Result<SampleOrigin> origin_of(std::int64_t sample_id, const Dataset& dataset) {
  if (sample_id < 0) {
    return Status(Reason::kSettings, fmt::format("there is no sample {} in the order (-1 marks a dummy)", sample_id));
  }
  STOKER_TRY(const OrderEntry entry, dataset.at(static_cast<std::uint64_t>(sample_id)));
  const Manifest& manifest = dataset.manifest(entry.source);
  const RowLocation at = manifest.row(entry.row);
  SampleOrigin origin{.pass = entry.pass,
                      .manifest = dataset.name(entry.source),
                      .line = at.line,
                      .byte_offset = at.offset,
                      .media = {}};
  std::string buffer;
  STOKER_TRY(const std::string_view line, manifest.read(entry.row, buffer));
  if (auto row = parse_row(line, dataset.rows(entry.source)); row.ok()) {
    for (const MediaRef& media : row->media) origin.media.push_back(shown_media(media.reference));
  }
  return origin;
}

}  // namespace stoker
