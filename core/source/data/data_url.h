#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "mem/buffer.h"
#include "source/blocking_pool.h"

namespace stoker {

/// Whether a reference holds its media itself: "data:...", in any letter case.
bool is_data_url(std::string_view reference);

/// Bytes that the base64 of a data: URL stands for, without decoding it: at most what decode_data_url gives, plus 2.
std::uint64_t data_url_bytes(std::string_view url);

/// data:[type][;parameter...];base64,TEXT. The type is not looked at: what the bytes are, they say themselves. TEXT is
/// base64 (RFC 4648, both alphabets); "=" at the end may be missing, blanks and line ends are skipped.
/// @return MEDIA_DATA for anything else; MEDIA_TOO_LARGE. The message shows the first 64 characters at most.
/// Threads: any.
Result<Buffer> decode_data_url(std::string_view url, std::uint64_t max_bytes);

/// data: URLs, for whoever asks a Fetcher. The pipeline decodes them where the row is read again, so that a window of
/// planned samples does not hold their text.
class DataSource final : public BlockingSource {
 public:
  explicit DataSource(std::uint64_t max_object_bytes) : max_object_bytes_(max_object_bytes) {}
  Result<FetchedObject> read(const FetchRequest& request, const Location& at, std::stop_token stop) const override;

 private:
  const std::uint64_t max_object_bytes_;
};

}  // namespace stoker
