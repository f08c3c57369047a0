#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "source/checksum/checksum.h"
#include "source/http/body_unpacker.h"
#include "source/partial.h"
#include "source/source.h"

namespace stoker {

/// What the head of an HTTP answer says, as far as we use it. Values are bounded; unknown headers are dropped.
struct AnswerHead {
  int status = 0;  ///< 0: no answer came
  std::optional<std::uint64_t> content_length;
  bool is_chunked = false;
  struct Range {
    std::optional<std::uint64_t> first;  ///< absent in "bytes */total"
    std::uint64_t end = 0;               ///< half-open
    std::optional<std::uint64_t> total;
  };
  std::optional<Range> content_range;
  std::string etag;
  /// Of the whole object as it is stored: the cheapest of those that the store gave, in base64.
  std::optional<std::pair<Checksum::Kind, std::string>> checksum;
  std::string content_encoding;  ///< as it stands
  bool is_unpacked = false;      ///< Google stores it packed and did not send it so: its checksum is of other bytes
  std::string bucket_region;     ///< x-amz-bucket-region
  std::string date;
  std::optional<Nanos> retry_after;  ///< only the form in seconds; at most a minute

  /// One header line, with or without its line end. A status line starts over: an interim answer or a redirect came
  /// before.
  void read_line(std::string_view line);

 private:
  void read_checksum(std::string_view name, std::string_view value);
};

/// Puts the body of one answer where it belongs: straight into the buffer that the caller gets, of the size that the
/// head announces. Checks length, range and checksum on the way, and unpacks what the store packed (Content-Encoding).
/// Knows nothing of curl, so that a test can feed it byte by byte. Not thread-safe.
class Answer {
 public:
  static constexpr std::size_t kMaxErrorBody = 16 * 1024;

  struct Options {
    std::uint64_t max_object_bytes = 0;
    bool as_stored = false;  ///< see FetchRequest
    LeaseFor lease_for = {};
  };
  /// @param partial  What an earlier answer gave: then only the rest was asked for.
  void begin(std::uint64_t offset, std::optional<std::uint64_t> length, const Options& options,
             std::optional<Partial> partial = std::nullopt);
  void on_header(std::string_view line) { head_.read_line(line); }
  /// @return false if the rest is not wanted: see `is_complete` and `finish`.
  bool on_body(std::string_view bytes);

  const AnswerHead& head() const { return head_; }
  /// Only the rest of what an earlier answer began was asked for.
  bool is_continuation() const { return !expected_etag_.empty(); }
  bool is_success() const { return head_.status == 200 || head_.status == 206; }
  std::string_view error_body() const { return error_body_; }
  std::uint64_t n_received() const { return n_received_; }
  /// Everything that was asked for is there, though the server may want to send more (it ignored the range).
  bool is_complete() const { return is_placed_ && n_want_ && n_filled_ == *n_want_; }
  /// "600 of 1000 bytes came"
  std::string progress() const;
  /// After `finish` returned FETCH_SERVER: the store sent a part of a packed body. Only the whole can be unpacked, and
  /// the part of it then taken.
  bool needs_whole() const { return needs_whole_; }
  /// After `finish` returned FETCH_CHECKSUM: what the bytes have instead of what the store says.
  std::string computed_checksum() const { return checksum_ ? checksum_->computed() : ""; }

  /// After the connection said that the body has ended, or `is_complete`. For 200 and 206, and for 416, which means an
  /// empty part. FETCH_CHECKSUM if the bytes are not those that the store has a checksum of.
  Result<FetchedObject> finish();
  /// Instead of `finish`, when the body ended early: what another answer can go on from. Nothing if no byte came, or if
  /// the object has no tag to know it by.
  std::optional<Partial> take_partial();

 private:
  bool place_packed();
  bool place();  // decides where the body goes, once the head is complete
  bool is_packed() const { return coding_ != Coding::kNone && !options_.as_stored; }
  bool take(std::string_view bytes);  // of the body, unpacked
  bool make_room(std::uint64_t n_bytes);
  bool refuse(Reason reason, std::string message);

  std::uint64_t offset_ = 0;
  std::optional<std::uint64_t> length_;
  Options options_;
  std::string expected_etag_;   // of a continuation
  bool wants_nothing_ = false;  // only tag and size: HTTP has no empty range, so one byte is asked for and dropped

  AnswerHead head_;
  std::string error_body_;
  Status refusal_;
  bool is_placed_ = false;
  Coding coding_ = Coding::kNone;
  std::optional<BodyUnpacker> unpacker_;
  bool needs_whole_ = false;
  std::uint64_t n_received_ = 0;          // of the body, whatever became of it
  std::uint64_t n_unpacked_ = 0;          // the same, if it was not packed
  std::uint64_t n_skip_ = 0;              // leading bytes of the unpacked body that were not asked for
  std::optional<std::uint64_t> n_want_;   // bytes of the part; absent while the length is unknown
  std::optional<std::uint64_t> n_total_;  // of the whole object
  std::uint64_t n_filled_ = 0;
  Buffer bytes_;
  std::optional<Checksum> checksum_;  // of a whole object, if the store gave one
};

}  // namespace stoker
