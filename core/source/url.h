#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace stoker {

/// Turns a row's media reference into what a Fetcher takes. Pure; touches neither disk nor network.
///
/// - relative reference: `media_root`, exactly one slash, the reference as it stands. The root is an absolute folder or
/// s3://bucket/prefix,
///   http(s)://... or mem://...; names are opaque bytes, so nothing is decoded and neither "//" nor "./" is removed.
/// - absolute path, s3://, http(s)://, mem://: itself, never joined. s3:// text is literal: "%2B" is three characters
/// of the key.
/// - file://: the only form that is percent-decoded; its host is empty or localhost.
/// - data: URLs: themselves.
/// @return MEDIA_SCHEME for any other scheme, MEDIA_NOT_FOUND for an empty reference, SETTINGS if a
/// relative reference has no
///         absolute root: the process's folder is never meant.
Result<std::string> resolve_media(std::string_view reference, std::string_view media_root);

/// A URL taken apart, as far as its kind of storage needs it.
struct Location {
  enum class Kind : std::uint8_t { kFile, kS3, kHttp, kMemory, kData };
  Kind kind = Kind::kFile;
  std::string bucket;  ///< S3 only
  std::string key;     ///< S3: the literal key; file: the path; http, data: the whole URL; memory: the name

  /// For messages: quoted, without user, query and fragment; at most about 260 bytes.
  std::string shown() const;
};

/// @return MEDIA_SCHEME for a scheme that is not served, MEDIA_NOT_FOUND for an s3:// URL without a key or with an
/// impossible bucket name.
Result<Location> parse_location(std::string_view url);

/// A reference for ledgers and messages: as it is, but an http URL without user and query, which may be a signature,
/// and a data: URL or base64 that was taken for a path cut to 64 characters, with its length.
std::string shown_media(std::string_view reference);

/// "%41" for every byte that is not unreserved (RFC 3986, 2.3); a slash stays if `keep_slash`. As S3 signatures want
/// it.
std::string percent_encode(std::string_view bytes, bool keep_slash);
/// Undoes percent_encode; a "%" that starts no two hexadecimal digits stays itself.
std::string percent_decode(std::string_view text);

}  // namespace stoker
