#include "source/http/answer.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

namespace stoker {
namespace {

constexpr std::size_t kMaxValue = 1024;
constexpr std::int64_t kMaxRetryAfterS = 60;

std::optional<std::uint64_t> to_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r' || text.back() == '\n'))
    text.remove_suffix(1);
  return text;
}

bool is_name(std::string_view found, std::string_view lower_case) {
  return found.size() == lower_case.size() &&
         std::equal(found.begin(), found.end(), lower_case.begin(),
                    [](char a, char b) { return (a >= 'A' && a <= 'Z' ? static_cast<char>(a | 0x20) : a) == b; });
}

// What S3 says in the body of a 416 where others send "Content-Range: bytes */1000".
std::optional<std::uint64_t> actual_size(std::string_view error_body) {
  constexpr std::string_view kOpen = "<ActualObjectSize>";
  const std::size_t at = error_body.find(kOpen);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = error_body.substr(at + kOpen.size());
  return to_number(rest.substr(0, rest.find('<')));
}

// "bytes 0-99/1000", "bytes 0-99/*", "bytes */1000"
std::optional<AnswerHead::Range> to_range(std::string_view value) {
  if (value.substr(0, 6) != "bytes ") return std::nullopt;
  value.remove_prefix(6);
  const std::size_t slash = value.find('/');
  if (slash == std::string_view::npos) return std::nullopt;
  AnswerHead::Range range;
  if (value.substr(slash + 1) != "*") {
    range.total = to_number(value.substr(slash + 1));
    if (!range.total) return std::nullopt;
  }
  const std::string_view part = value.substr(0, slash);
  if (part == "*") return range;
  const std::size_t dash = part.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  range.first = to_number(part.substr(0, dash));
  const auto last = to_number(part.substr(dash + 1));
  if (!range.first || !last || *last < *range.first || *last == UINT64_MAX) return std::nullopt;
  range.end = *last + 1;
  if (range.total && range.end > *range.total) return std::nullopt;
  return range;
}

}  // namespace

void AnswerHead::read_line(std::string_view line) {
  line = trim(line);
  if (line.substr(0, 5) == "HTTP/") {
    *this = {};
    const std::size_t space = line.find(' ');
    is_chunked = line.substr(0, 6) == "HTTP/2";  // its frames say where the body ends, as chunks do
    if (space != std::string_view::npos) status = static_cast<int>(to_number(line.substr(space + 1, 3)).value_or(0));
    return;
  }
  const std::size_t colon = line.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trim(line.substr(colon + 1)).substr(0, kMaxValue);
  if (is_name(name, "content-length")) {
    content_length = to_number(value);
  } else if (is_name(name, "content-range")) {
    content_range = to_range(value);
  } else if (is_name(name, "etag")) {
    etag = value;
  } else if (is_name(name, "transfer-encoding")) {
    is_chunked = true;
  } else if (is_name(name, "content-encoding")) {
    content_encoding = value;
  } else if (is_name(name, "x-goog-stored-content-encoding")) {
    is_unpacked = coding_of(value) != Coding::kNone;
  } else if (is_name(name.substr(0, 15), "x-amz-checksum-") || is_name(name, "x-goog-hash")) {
    read_checksum(name, value);
  } else if (is_name(name, "x-amz-bucket-region")) {
    bucket_region = value;
  } else if (is_name(name, "date")) {
    date = value;
  } else if (is_name(name, "retry-after")) {
    if (const auto s = to_number(value))
      retry_after = std::chrono::seconds(
          std::min<std::int64_t>(kMaxRetryAfterS, static_cast<std::int64_t>(std::min<std::uint64_t>(*s, 3600))));
  }
}

void AnswerHead::read_checksum(std::string_view name, std::string_view value) {
  using Kind = Checksum::Kind;
  const auto note = [&](Kind kind, std::string_view text) {
    if (!checksum || kind < checksum->first) checksum.emplace(kind, text);
  };
  if (is_name(name, "x-goog-hash")) {  // "crc32c=n03x6A==,md5=..."
    const std::size_t at = value.find("crc32c=");
    if (at != std::string_view::npos) note(Kind::kCrc32c, value.substr(at + 7, 8));
    return;
  }
  name.remove_prefix(15);
  if (value.find('-') != std::string_view::npos) return;  // made of the checksums of parts
  if (is_name(name, "crc64nvme")) note(Kind::kCrc64Nvme, value);
  if (is_name(name, "crc32c")) note(Kind::kCrc32c, value);
  if (is_name(name, "crc32")) note(Kind::kCrc32, value);
  if (is_name(name, "sha256")) note(Kind::kSha256, value);
  if (is_name(name, "sha1")) note(Kind::kSha1, value);
}

void Answer::begin(std::uint64_t offset, std::optional<std::uint64_t> length, const Options& options,
                   std::optional<Partial> partial) {
  *this = {};
  offset_ = offset;
  wants_nothing_ = length == std::uint64_t{0};
  length_ = wants_nothing_ ? 1 : length;
  options_ = options;
  if (!partial) return;
  bytes_ = std::move(partial->bytes);
  n_filled_ = partial->n_filled;
  n_want_ = bytes_.size();
  n_total_ = partial->total_bytes;
  expected_etag_ = std::move(partial->etag);
  checksum_ = std::move(partial->checksum);
}

bool Answer::refuse(Reason reason, std::string message) {
  refusal_ = Status(reason, std::move(message));
  return false;
}

bool Answer::make_room(std::uint64_t n_bytes) {
  if (n_bytes > options_.max_object_bytes) {
    return refuse(Reason::kMediaTooLarge,
                  fmt::format("{} bytes are more than the limit of {}", n_bytes, options_.max_object_bytes));
  }
  Result<Buffer> larger = make_buffer(options_.lease_for, static_cast<std::size_t>(n_bytes));
  if (!larger.ok()) {
    refusal_ = std::move(larger).status();
    return false;
  }
  if (n_filled_ > 0) std::memcpy(larger->data(), bytes_.data(), static_cast<std::size_t>(n_filled_));
  bytes_ = *std::move(larger);
  return true;
}

bool Answer::place_packed() {
  const auto cannot = [&] {
    return refuse(Reason::kMediaEncoding,
                  fmt::format("the store sends it with Content-Encoding \"{}\"; store it unpacked, or with gzip",
                              head_.content_encoding));
  };
  // zstd is left to those who know it by its content.
  if (coding_ == Coding::kOther && !(options_.as_stored && head_.content_encoding == "zstd")) return cannot();
  if (options_.as_stored) return true;
  if (head_.status == 206) {
    needs_whole_ = true;
    return refuse(Reason::kFetchServer, "the store packs it, so that a part of it says nothing: reading the whole");
  }
  unpacker_.emplace(coding_);
  return true;
}

bool Answer::place() {
  is_placed_ = true;
  const std::uint64_t from = offset_ + n_filled_;  // n_filled_: of an earlier answer
  if (is_continuation()) {
    const auto& range = head_.content_range;
    const bool is_rest = head_.status == 206 && range && range->first == from && range->end == offset_ + *n_want_ &&
                         range->total == n_total_;
    const bool is_whole = head_.status == 200 && head_.content_length == n_total_;
    if (head_.etag != expected_etag_ || (!is_rest && !is_whole)) {
      return refuse(Reason::kFetchShortBody, "the object changed while it was read: starting over");
    }
    if (is_whole) n_skip_ = from;
    return true;
  }
  coding_ = coding_of(head_.content_encoding);
  if (coding_ != Coding::kNone && !place_packed()) return false;
  if (head_.status == 200 && offset_ == 0 && !length_ && head_.checksum && !head_.is_unpacked && !is_packed()) {
    checksum_ = Checksum::expect(head_.checksum->first, head_.checksum->second);
  }
  if (head_.status == 206) {
    const auto& range = head_.content_range;
    if (!range || !range->first || !range->total)
      return refuse(Reason::kFetchServer, "a partial answer without a usable Content-Range");
    const std::uint64_t rest = *range->total - std::min(offset_, *range->total);
    const std::uint64_t expected = std::min(length_.value_or(rest), rest);
    if (*range->first != offset_ || range->end - offset_ != expected) {
      return refuse(Reason::kFetchServer,
                    fmt::format("the store sent bytes {} to {} where {} bytes from {} on were asked for", *range->first,
                                range->end, expected, offset_));
    }
    n_total_ = range->total;
    n_want_ = expected;
  } else if (head_.content_length && !is_packed()) {  // the whole object, perhaps though a part was asked for
    n_total_ = head_.content_length;
    n_skip_ = std::min(offset_, *n_total_);
    n_want_ = std::min(length_.value_or(UINT64_MAX), *n_total_ - n_skip_);
  } else {
    if (!head_.is_chunked && !head_.content_length) {
      return refuse(Reason::kFetchServer, "an answer without a length: whether it is complete cannot be known");
    }
    n_skip_ = offset_;
    return true;
  }
  return make_room(*n_want_);
}

bool Answer::on_body(std::string_view bytes) {
  if (!is_success()) {
    n_received_ += bytes.size();
    error_body_.append(bytes.substr(0, kMaxErrorBody - std::min(kMaxErrorBody, error_body_.size())));
    return error_body_.size() < kMaxErrorBody;
  }
  if (!is_placed_ && !place()) return false;
  n_received_ += bytes.size();
  if (unpacker_) return unpacker_->feed(bytes, [this](std::string_view piece) { return take(piece); });
  if (!take(bytes)) return false;
  // The remainder of an ignored range is read if it is short, so that the connection lives on; else it is cut.
  const bool more_comes = n_total_ && head_.status == 200 && *n_total_ - n_received_ > 256 * 1024;
  return !(is_complete() && more_comes);
}

bool Answer::take(std::string_view bytes) {
  const std::uint64_t begin = n_unpacked_;  // of these bytes, in the body
  n_unpacked_ += bytes.size();
  if (unpacker_ && n_unpacked_ > options_.max_object_bytes) return make_room(n_unpacked_);  // which refuses
  if (begin < n_skip_)
    bytes.remove_prefix(static_cast<std::size_t>(std::min<std::uint64_t>(n_skip_ - begin, bytes.size())));
  const std::uint64_t wanted = n_want_ ? *n_want_ : length_.value_or(UINT64_MAX);
  bytes = bytes.substr(0, static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), wanted - n_filled_)));
  if (n_filled_ + bytes.size() > bytes_.size() &&
      !make_room(std::max<std::uint64_t>(
          n_filled_ + bytes.size(), std::min<std::uint64_t>(2 * bytes_.size() + 65536, options_.max_object_bytes)))) {
    return false;
  }
  if (!bytes.empty()) std::memcpy(bytes_.data() + n_filled_, bytes.data(), bytes.size());
  if (checksum_) checksum_->update({bytes_.data() + n_filled_, bytes.size()});  // while they are in the cache
  n_filled_ += bytes.size();
  return true;
}

std::optional<Partial> Answer::take_partial() {
  if (head_.status == 412 || head_.status == 416) return std::nullopt;  // the object is another one by now
  const bool has_begun = is_success() && is_placed_;
  if (!refusal_.ok() || (!has_begun && !is_continuation()) || !n_want_ || !n_total_ || wants_nothing_) {
    return std::nullopt;
  }
  std::string& etag = is_continuation() ? expected_etag_ : head_.etag;
  if (n_filled_ == 0 || n_filled_ == *n_want_ || etag.empty() || etag.substr(0, 2) == "W/") return std::nullopt;
  return Partial{.bytes = std::move(bytes_),
                 .n_filled = n_filled_,
                 .total_bytes = *n_total_,
                 .etag = std::move(etag),
                 .checksum = std::move(checksum_)};
}

std::string Answer::progress() const {
  if (!n_want_) return fmt::format("{} bytes came", n_filled_);
  return fmt::format("{} of {} bytes came", n_filled_, *n_want_);
}

Result<FetchedObject> Answer::finish() {
  FetchedObject object;
  object.etag = head_.etag;
  if (head_.status == 416) {
    const auto total = head_.content_range ? head_.content_range->total : actual_size(error_body_);
    // A store that refuses a range inside the object would otherwise make it look empty.
    if (!total || *total > offset_) return Status(Reason::kFetchServer, "the store refuses the range");
    object.total_bytes = *total;
    return object;
  }
  if (refusal_.ok() && !is_placed_ && head_.content_length.value_or(0) == 0 && !head_.content_range &&
      !head_.is_chunked && !is_continuation()) {
    is_placed_ = true;  // an empty body calls no on_body
    n_want_ = n_total_ = 0;
    if (!head_.content_length)
      refuse(Reason::kFetchServer, "an answer without a length: whether it is complete cannot be known");
  } else if (!is_placed_) {
    place();
  }
  if (!refusal_.ok()) return refusal_;
  if (unpacker_ && !unpacker_->finish([this](std::string_view piece) { return take(piece); })) {
    if (!refusal_.ok()) return refusal_;
    return Status(Reason::kMediaEncoding, fmt::format("its {} bytes of Content-Encoding \"{}\" are damaged",
                                                      n_received_, head_.content_encoding));
  }
  if (!n_want_) {  // the framing says that this is all
    n_total_ = n_unpacked_;
    bytes_.shrink(static_cast<std::size_t>(n_filled_));
  } else if (n_filled_ != *n_want_) {
    return Status(Reason::kFetchShortBody, "the body ended early: " + progress());
  }
  if (checksum_) {
    if (const std::string computed = checksum_->computed(); computed != checksum_->expected()) {
      return Status(Reason::kFetchChecksum, fmt::format("the store says {} {}, the {} bytes that came have {}",
                                                        checksum_->name(), checksum_->expected(), n_filled_, computed));
    }
  }
  if (wants_nothing_) bytes_.shrink(0);
  object.bytes = std::move(bytes_);
  object.total_bytes = n_total_.value_or(n_filled_);
  return object;
}

}  // namespace stoker
