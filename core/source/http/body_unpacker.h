#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

struct z_stream_s;

namespace stoker {

/// What a Content-Encoding header says, as far as it matters here.
enum class Coding : std::uint8_t {
  kNone,  ///< nothing, "identity", or the "aws-chunked" that uploading clients leave behind
  kGzip,
  kDeflate,
  kOther,  ///< Brotli, Zstandard, two at once
};
Coding coding_of(std::string_view content_encoding);

/// Undoes gzip and deflate piece by piece. A body that is not gzip although its header says so (a mislabelled upload)
/// comes out as it is. Not thread-safe.
class BodyUnpacker {
 public:
  /// Takes a piece of what comes out, 64 KiB at most; false: enough.
  using Sink = std::function<bool(std::string_view)>;

  explicit BodyUnpacker(Coding coding) : coding_(coding) {}

  /// @return false if `sink` did, or if the body is damaged.
  bool feed(std::string_view bytes, const Sink& sink);
  /// After the last byte: hands on what was held back, and looks whether the packed stream is complete.
  bool finish(const Sink& sink);
  bool is_damaged() const { return is_damaged_; }

 private:
  struct End {
    void operator()(z_stream_s* stream) const;
  };
  bool begin();
  bool inflate_some(std::string_view bytes, const Sink& sink);

  Coding coding_;
  std::string held_;  // the first two bytes, which tell what the body is
  std::string out_;
  std::unique_ptr<z_stream_s, End> stream_;
  bool is_plain_ = false;
  bool is_at_end_ = false;  // of a gzip member; another may follow
  bool is_damaged_ = false;
};

}  // namespace stoker
