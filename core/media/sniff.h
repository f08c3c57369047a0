#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "base/result.h"
#include "media/image.h"

namespace stoker {

/// The format of a file, by content. Reads at most `prefix`.
/// @return nothing if `prefix` is too short to tell and more bytes may come; kBadSample IMG_NOT_AN_IMAGE or
/// IMG_UNSUPPORTED with
///         what the bytes look like and the first 16 of them.
Result<std::optional<ImageFormat>> sniff(std::span<const std::byte> prefix, bool is_whole);

}  // namespace stoker
