#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"
#include "media/formats.h"

namespace stoker {

/// The format of a file, by content. Reads at most `prefix`.
/// @return nullptr if `prefix` is too short to tell and more bytes may come; kBadSample IMG_NOT_AN_IMAGE or
///         IMG_UNSUPPORTED with what the bytes look like and the first 16 of them.
Result<const FormatEntry*> sniff(std::span<const std::byte> prefix, bool is_whole);

}  // namespace stoker
