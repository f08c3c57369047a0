#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace stoker {

/// Chosen by what the caller should do, not by where the failure arose.
enum class Code : std::uint8_t {
  kOk,
  kInvalidArgument,  ///< the configuration is wrong: stop and tell the user
  kBadSample,        ///< this sample cannot be used: skip it, count it, name it
  kUnavailable,      ///< may work later: retry with backoff
  kExhausted,        ///< over the memory budget: wait, or shrink the batch
  kCancelled,        ///< we were asked to stop: unwind without a message
  kInternal,         ///< a bug of ours: stop, with everything we know
};

/// What went wrong, one fixed name per kind of trouble; see reasons.def.
enum class Reason : std::uint8_t {
#define STOKER_REASON(id, name, action, text) id,
#include "base/reasons.def"
#undef STOKER_REASON
};

Code action_of(Reason reason);            ///< What a caller should do about it.
std::string_view name_of(Reason reason);  ///< "IMG_TRUNCATED"; stable, in ledgers and Python's `.code`.
std::string_view text_of(Reason reason);  ///< One sentence for docs and `--help`.
std::optional<Reason> reason_named(std::string_view name);
inline constexpr int kNumReasons = 0
#define STOKER_REASON(id, name, action, text) +1
#include "base/reasons.def"
#undef STOKER_REASON
    ;

/// Success, or a reason with a message. Cheap to return when ok (one null pointer).
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Reason reason, std::string message) : reason_(reason), message_(std::move(message)) {}

  bool ok() const { return reason_ == Reason::kNone; }
  Reason reason() const { return reason_; }
  Code code() const { return action_of(reason_); }
  const std::string& message() const { return message_; }

  /// Names the object, once, at the outermost caller that knows it: "decode s3://b/k.png: truncated at byte 812".
  Status with(std::string_view context) &&;
  /// "IMG_TRUNCATED: decode s3://b/k.png: truncated at byte 812".
  std::string to_string() const;

 private:
  Reason reason_ = Reason::kNone;
  std::string message_;
};

/// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): `return value;` is the point
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const& { return status_; }
  Status&& status() && { return std::move(status_); }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

#define STOKER_CONCAT_(a, b) a##b
#define STOKER_CONCAT(a, b) STOKER_CONCAT_(a, b)
#define STOKER_TRY_(tmp, decl, expr)             \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return std::move(tmp).status(); \
  decl = std::move(tmp).value()
/// STOKER_TRY(auto image, decode(object)); on failure returns its Status.
#define STOKER_TRY(decl, expr) STOKER_TRY_(STOKER_CONCAT(stoker_try_, __COUNTER__), decl, expr)
/// STOKER_CHECKED(write(x)); for a call that returns a Status.
#define STOKER_CHECKED(expr)                                                                \
  do {                                                                                      \
    if (::stoker::Status stoker_status = (expr); !stoker_status.ok()) return stoker_status; \
  } while (false)

}  // namespace stoker
