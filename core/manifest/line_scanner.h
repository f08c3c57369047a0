#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace stoker {

/// A line of a manifest, its end included.
struct FoundLine {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool is_row = false;  ///< something but blanks stands in it
};

/// Cuts a stream of pieces into lines, from the byte `begin` of the file on.
/// @tparam Sink  `void line(const FoundLine&)` for each, in order; and `void bytes(std::string_view)` for what a line
/// consists of, piece by piece and before its line(): all of it in one piece wherever the pieces fed allow it.
template <typename Sink>
class LineScanner {
 public:
  LineScanner(Sink& sink, std::uint64_t begin) : sink_(sink), at_(begin), line_begin_(begin) {}

  void feed(const char* data, std::size_t n_bytes) {
    const char* p = data;
    const char* const end = data + n_bytes;
    if (at_ == 0 && std::string_view(data, n_bytes).starts_with("\xEF\xBB\xBF")) {
      p += 3;
      line_begin_ = 3;
    }
    while (p != end) {
      const char* const from = p;
      if (!is_row_) {
        while (p != end && (*p == ' ' || *p == '\t' || *p == '\r')) ++p;
        is_row_ = p != end && *p != '\n';
      }
      const void* found = p == end ? nullptr : std::memchr(p, '\n', static_cast<std::size_t>(end - p));
      p = found == nullptr ? end : static_cast<const char*>(found) + 1;
      sink_.bytes({from, static_cast<std::size_t>(p - from)});
      if (found != nullptr) end_line(at_ + static_cast<std::uint64_t>(p - data));
    }
    at_ += n_bytes;
  }

  /// The end of the file: a last line needs no line end.
  void finish() {
    if (at_ > line_begin_) end_line(at_);
  }

 private:
  void end_line(std::uint64_t end) {
    sink_.line({line_begin_, end, is_row_});
    line_begin_ = end;
    is_row_ = false;
  }

  Sink& sink_;
  std::uint64_t at_;
  std::uint64_t line_begin_;
  bool is_row_ = false;  // something but blanks was seen in this line
};

}  // namespace stoker
