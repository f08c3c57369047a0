#pragma once

#include <string>
#include <string_view>

namespace stoker {

/// What an S3 error body says. Every field may be empty: proxies and HEAD answers send none, or HTML.
struct S3Error {
  std::string code;      ///< "NoSuchKey"
  std::string message;   ///< a sentence for people, control characters replaced
  std::string region;    ///< of the bucket, where a redirect names it
  std::string endpoint;  ///< likewise
};

/// Reads the direct children of <Error>. Total and bounded: looks at the first 16 KiB, keeps at most 512 bytes of each
/// field, never fails. Pure. Threads: any.
S3Error parse_s3_error(std::string_view body);

}  // namespace stoker
