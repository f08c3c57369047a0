#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "data/sample.h"
#include "manifest/json.h"
#include "manifest/row_boxes.h"
#include "manifest/row_keys.h"
#include "manifest/row_media.h"
#include "manifest/row_options.h"

namespace stoker {

/// Reads turns, in whichever spelling, and adds them to the sample.
class TurnReader {
 public:
  /// Everything borrowed outlives this.
  TurnReader(const RowOptions& options, Sample& sample, RowMedia& media, RowBoxes& boxes, std::uint32_t& n_replaced)
      : options_(options),
        spelling_(renamed(kTurnKeys, options)),
        sample_(sample),
        media_(media),
        boxes_(boxes),
        n_replaced_(n_replaced) {}

  /// An object with a role and content. @return ROW_SCHEMA, ROW_AMBIGUOUS, ROLE_UNKNOWN, PART_TYPE, MEDIA_UNSUPPORTED.
  Status read(const JsonView& value);
  /// A list of them. @param what  Names it in messages.
  Status read_list(const JsonView& turns, std::string_view what);
  /// A turn that is only a string or a list of parts, as in query-response rows.
  Status read_bare(Role role, const JsonView& content);
  /// The same of text that was put together.
  void add_marked(Role role, std::string_view text);

 private:
  Result<RowRole> role_of(const JsonView& role) const;
  Status read_content(const JsonView& content, Turn& turn);
  Status read_part(const JsonView& value, Turn& turn);
  Status read_loss(const Fields<kTurnKeys.size()>& fields, Turn& turn) const;
  Status read_tool_calls(const JsonView& calls, Turn& turn);
  Status read_tool_call(const JsonView& value, Turn& turn);
  Status read_call_text(const JsonView& content, Turn& turn);
  Status add_call_turn(Turn turn);
  void read_marked_text(std::string_view text, bool has_media_marks, Turn& turn);

  const RowOptions& options_;
  const KeyNames<kTurnKeys.size()> spelling_;
  Sample& sample_;
  RowMedia& media_;
  RowBoxes& boxes_;
  std::uint32_t& n_replaced_;
};

}  // namespace stoker
