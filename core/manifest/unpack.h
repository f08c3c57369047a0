#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>

#include "base/result.h"
#include "manifest/files.h"
#include "manifest/index.h"

namespace stoker {

/// How a manifest's bytes hold its rows.
enum class Packing : std::uint8_t { kNone, kGzip, kZstd };

/// Known by content, never by name. @param head  The first bytes.
Packing packing_of(std::string_view head);

/// Takes a piece of what comes out.
using PieceSink = std::function<Status(std::string_view)>;

/// Turns a packed stream, fed in pieces, into the bytes it holds, a megabyte at a time.
class Unpacker {
 public:
  virtual ~Unpacker() = default;
  /// @return MANIFEST for damage; what `sink` returns.
  virtual Status feed(std::string_view piece, const PieceSink& sink) = 0;
  /// @return MANIFEST if the stream ends too early.
  virtual Status finish() const = 0;
};
std::unique_ptr<Unpacker> make_unpacker(Packing packing);

/// A manifest that is packed, or one JSON list, written anew as JSONL that can be read at any place.
struct Unpacked {
  FileHandle rows;       ///< open for reading
  std::string name;      ///< path of `rows`; empty: a file without a name, gone with its handle
  FileHandle positions;  ///< a RowLocation for each element of a list; not open otherwise
  std::string form;      ///< "JSONL in gzip", "a JSON list", ...
};

/// @param file, path, stamp  The manifest, open.
/// @return `rows` not open for a plain JSONL file. MANIFEST for damage, with the place; INDEX_DIR; STOPPED.
/// Memory: a few MiB, whatever the file; zstd windows up to 128 MiB.
Result<Unpacked> unpack(const FileHandle& file, const std::string& path, const FileStamp& stamp,
                        const ManifestOptions& options, const std::stop_token& stop);

}  // namespace stoker
