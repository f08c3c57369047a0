#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/result.h"
#include "source/s3/sigv4.h"
#include "source/storage_settings.h"

namespace stoker {

/// Sections of an AWS profile file: name -> key -> value, as written. Nested blocks ("s3 =" and indented lines) become
/// "s3.key". Total: what is no section, pair or comment is skipped. Later keys win.
using IniFile = std::map<std::string, std::map<std::string, std::string>>;
IniFile parse_ini(std::string_view text);

/// The values of one profile, from the credentials file and the config file (where sections are called "profile NAME").
std::map<std::string, std::string> read_profile(const StorageSettings& settings, std::string& name);

/// Keys, where they come from, and how often they were read anew.
struct Credentials {
  S3Keys keys;
  std::string provider;          ///< for messages: "the environment", "profile \"x\" in /path"; never key material
  std::uint64_t generation = 0;  ///< grows when the keys changed
};

/// Finds keys: settings, then environment, then profile file. Only the file can change during a run.
/// Threads: any.
class CredentialStore {
 public:
  explicit CredentialStore(const StorageSettings& settings);

  /// @return FETCH_CREDENTIALS if there are none; the message says where was looked.
  Result<Credentials> current() const STOKER_EXCLUDES(mu_);
  /// A store refused the keys of `generation`: reads the file again, once for all who ask at the same time.
  /// @return true if `current` now differs from what was refused.
  bool refresh(std::uint64_t generation) STOKER_EXCLUDES(mu_);

 private:
  std::optional<Credentials> look_up() const;

  const StorageSettings settings_;
  mutable Mutex mu_;
  std::optional<Credentials> current_ STOKER_GUARDED_BY(mu_);
};

}  // namespace stoker
