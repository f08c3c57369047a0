#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "source/s3/key_source.h"
#include "source/s3/sigv4.h"
#include "source/storage_settings.h"

namespace stoker {

/// Sections of an AWS profile file: name -> key -> value, as written. Nested blocks ("s3 =" and indented lines) become
/// "s3.key". Total: what is no section, pair or comment is skipped. Later keys win.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;
IniFile parse_ini(std::string_view text);

/// The values of one profile, from the credentials file and the config file (where sections are called "profile NAME").
std::map<std::string, std::string> read_profile(const StorageSettings& settings, std::string& name);

/// The words of others, who may have put keys into them, without any that could be one; one line, of some 400 bytes.
std::string without_likely_keys(std::string_view text);

/// Keys, where they come from, and how often they were read anew.
struct Credentials {
  S3Keys keys;
  std::string provider;          ///< for messages: "the environment", "profile \"x\" in /path"; never key material
  std::uint64_t generation = 0;  ///< grows when the keys changed
};

/// What became of refused keys.
enum class Refreshed : std::uint8_t {
  kNew,      ///< `current` differs from what was refused
  kPending,  ///< new ones are being asked for
  kSame,     ///< there are no others
};

/// Finds keys: settings, then environment, then profile file; what these leave to a KeySource (roles, single sign-on,
/// processes, or keys that are nowhere here), that source. Its thread starts with the first question, asks again ahead
/// of the keys' end and when a store refused them, and is the only one that ever calls the source.
/// Threads: any. Nothing here waits for the source, except stop().
class CredentialStore {
 public:
  explicit CredentialStore(const StorageSettings& settings, const Clock& clock = Clock::real());
  ~CredentialStore() { stop(); }
  CredentialStore(const CredentialStore&) = delete;
  CredentialStore& operator=(const CredentialStore&) = delete;

  /// @return FETCH_CREDENTIALS if there are none; the message says where was looked. FETCH_KEYS_PENDING while a source
  /// looks for them.
  Result<Credentials> current() STOKER_EXCLUDES(mu_);
  /// A store refused the keys of `generation`: reads the file again, or has the source asked, once for all who come at
  /// the same time.
  Refreshed refresh(std::uint64_t generation) STOKER_EXCLUDES(mu_);
  /// Whose keys are in use; "nobody" before there are any.
  std::string provider() const STOKER_EXCLUDES(mu_);
  /// Whether `text` holds a part of the keys in use, or of earlier ones, literally or percent-encoded.
  bool is_betrayed_by(std::string_view text) const STOKER_EXCLUDES(mu_);
  /// Ends the thread. Repeatable.
  void stop() STOKER_EXCLUDES(mu_);

 private:
  std::optional<Credentials> look_up() const;
  void ask(bool afresh) STOKER_REQUIRES(mu_);
  void run(std::stop_token stop) STOKER_EXCLUDES(mu_);
  std::string take(Result<SourcedKeys> got, bool was_afresh) STOKER_EXCLUDES(mu_);
  std::string take_keys(SourcedKeys got, Nanos now) STOKER_REQUIRES(mu_);
  std::string take_failure(const Status& why, bool was_afresh, Nanos now) STOKER_REQUIRES(mu_);
  void replace(Credentials found) STOKER_REQUIRES(mu_);

  const StorageSettings settings_;
  const Clock& clock_;
  std::string left_to_source_;  // why, for messages; constant after construction
  bool uses_source_ = false;    // likewise

  mutable Mutex mu_;
  std::condition_variable_any asked_;
  std::optional<Credentials> current_ STOKER_GUARDED_BY(mu_);
  std::deque<S3Keys> earlier_ STOKER_GUARDED_BY(mu_);

  // Of a source:
  std::optional<Nanos> expires_at_ STOKER_GUARDED_BY(mu_);
  Nanos due_ STOKER_GUARDED_BY(mu_) = Nanos::max();         // when to ask without being told to
  Nanos same_until_ STOKER_GUARDED_BY(mu_) = Nanos::min();  // it gave refused keys again: not asked before then
  Status failure_ STOKER_GUARDED_BY(mu_);                   // of the last question
  int n_failures_ STOKER_GUARDED_BY(mu_) = 0;
  bool is_refused_ STOKER_GUARDED_BY(mu_) = false;  // current_, by a store
  bool is_asked_ STOKER_GUARDED_BY(mu_) = false;    // ... a question, or one under way
  bool is_afresh_ STOKER_GUARDED_BY(mu_) = false;   // the next question
  bool is_stopped_ STOKER_GUARDED_BY(mu_) = false;
  std::jthread thread_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker
