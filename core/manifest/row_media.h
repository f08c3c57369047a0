#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/sample.h"
#include "manifest/json.h"
#include "manifest/row_keys.h"

namespace stoker {

/// The media of one row: its own lists (`images`, `videos`), from which placeholders take in order, and those that
/// parts bring themselves. Everything lands in Sample::media in reading order.
class RowMedia {
 public:
  /// @param n_replaced  Counts halves of surrogate pairs in references; outlives this.
  RowMedia(Sample& sample, std::uint32_t& n_replaced) : sample_(sample), n_replaced_(n_replaced) {}

  /// Reads the row's lists. @return ROW_SCHEMA, ROW_AMBIGUOUS, MEDIA_UNSUPPORTED.
  Status read_lists(const RowFields& row);
  /// A placeholder in a string, or a part without a reference; `own` has what the part itself says. Beyond the end of
  /// the list it is only counted: the row is refused at its end, with both numbers.
  void take_image(const MediaRef& own, Turn& turn);
  void take_video(const MediaRef& own, Turn& turn);
  /// A part of a list of parts that is an image or a video. @return ROW_SCHEMA, MEDIA_UNSUPPORTED.
  Status read_part(const JsonView& part, MediaKind kind, Turn& turn);
  /// Everything was taken, and nothing more was wanted. @return MEDIA_COUNT.
  Status check_used_up() const;

 private:
  struct List {
    std::vector<MediaRef> refs;
    std::size_t n_wanted = 0;  // placeholders so far
  };

  Result<std::string> reference_of(const JsonView& value);
  Result<std::string> source_of(const JsonView& source);
  Status read_size(const JsonView& width, const JsonView& height, MediaRef& media) const;
  Status read_wishes(const JsonView& object, MediaRef& media) const;
  Status read_image(const JsonView& value, bool is_base64);
  Status read_video(const JsonView& value);
  Status read_frames(const JsonView& frames, MediaRef& media);
  Status read_row_sizes(const JsonView& width, const JsonView& height);
  void take(List& from, const MediaRef& own, Turn& turn);
  void add(MediaRef media, Turn& turn);

  Sample& sample_;
  std::uint32_t& n_replaced_;
  List images_;
  List videos_;
};

}  // namespace stoker
