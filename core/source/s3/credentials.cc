#include "source/s3/credentials.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "source/url.h"

namespace stoker {
namespace {

constexpr std::size_t kMaxFile = std::size_t{1} << 20;

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

std::string read_small_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxFile, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(in.gcount() > 0 ? static_cast<std::size_t>(in.gcount()) : 0);
  return text;
}

std::string value_of(const std::map<std::string, std::string>& values, const char* name) {
  const auto it = values.find(name);
  return it == values.end() ? "" : it->second;
}

std::string file_path(const Environment& environment, const char* variable, const char* in_home) {
  if (auto path = environment(variable)) return *path;
  const auto home = environment("HOME");
  return home ? *home + in_home : "";
}

void merge(const IniFile& file, const std::string& section, std::map<std::string, std::string>& into) {
  const auto it = file.find(section);
  if (it == file.end()) return;
  for (const auto& [key, value] : it->second) into.insert_or_assign(key, value);
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (!value || !*value) return std::nullopt;
    return value;
  };
}

IniFile parse_ini(std::string_view text) {
  IniFile file;
  std::map<std::string, std::string>* section = nullptr;
  std::string block;  // the key whose indented lines we are in
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const std::string_view bare = trim(line);
    if (bare.empty() || bare.front() == '#' || bare.front() == ';') continue;
    const bool is_indented = line.front() == ' ' || line.front() == '\t';
    if (!is_indented && bare.front() == '[') {
      const std::size_t close = bare.find(']');
      section = close == std::string_view::npos ? nullptr : &file[std::string(trim(bare.substr(1, close - 1)))];
      block.clear();
      continue;
    }
    const std::size_t equals = bare.find('=');
    if (!section || equals == std::string_view::npos) continue;
    std::string key(trim(bare.substr(0, equals)));
    std::string value(trim(bare.substr(equals + 1)));
    if (!is_indented) {
      block = value.empty() ? key : "";
    } else if (!block.empty()) {
      key = block + "." + key;
    }
    section->insert_or_assign(std::move(key), std::move(value));
  }
  return file;
}

std::map<std::string, std::string> read_profile(const StorageSettings& settings, std::string& name) {
  const Environment& env = settings.environment;
  name = !settings.profile.empty() ? settings.profile : env("AWS_PROFILE").value_or("default");
  std::map<std::string, std::string> values;
  const std::string config = file_path(env, "AWS_CONFIG_FILE", "/.aws/config");
  const std::string credentials = file_path(env, "AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials");
  if (!config.empty()) {
    const IniFile file = parse_ini(read_small_file(config));
    merge(file, name == "default" && !file.contains("profile default") ? "default" : "profile " + name, values);
  }
  if (!credentials.empty()) merge(parse_ini(read_small_file(credentials)), name, values);
  return values;
}

namespace {

// What a profile says that the engine leaves to a source, and how a message calls it.
constexpr std::array<std::pair<const char*, const char*>, 9> kLeftToSource = {{
    {"role_arn", "a role (role_arn)"},
    {"web_identity_token_file", "a web identity (web_identity_token_file)"},
    {"sso_session", "single sign-on (sso_session)"},
    {"sso_start_url", "single sign-on (sso_start_url)"},
    {"sso_account_id", "single sign-on (sso_account_id)"},
    {"sso_role_name", "single sign-on (sso_role_name)"},
    // From here on keys in the profile come first.
    {"login_session", "a console login (login_session)"},
    {"credential_process", "a process (credential_process)"},
    {"credential_source", "a role's source (credential_source)"},
}};
constexpr std::size_t kBeforeKeys = 6;

bool names_web_identity(const StorageSettings& settings) {
  return settings.profile.empty() && settings.environment("AWS_WEB_IDENTITY_TOKEN_FILE") &&
         settings.environment("AWS_ROLE_ARN");
}

constexpr Nanos kMostAhead = std::chrono::minutes(5);  // of the end of keys
constexpr Nanos kLeastPause = std::chrono::seconds(1);
constexpr Nanos kMostPause = std::chrono::seconds(30);
constexpr Nanos kTrustSame = std::chrono::seconds(10);
constexpr std::size_t kEarlierKeys = 4;

bool is_same(const S3Keys& a, const S3Keys& b) {
  return a.access_key_id == b.access_key_id && a.secret_access_key == b.secret_access_key &&
         a.session_token == b.session_token;
}

}  // namespace

std::string without_likely_keys(std::string_view text) {
  constexpr std::string_view kBreaks = " \t\r\n\"'`,;:()[]{}<>|&?";
  constexpr std::size_t kLongest = 19, kMost = 400;  // an access key id has 20
  std::string out;
  while (!text.empty() && out.size() < kMost) {
    const std::size_t end = std::min(text.find_first_of(kBreaks), text.size());
    const std::string_view word = text.substr(0, end);
    const auto any = [&](auto is) { return std::any_of(word.begin(), word.end(), is); };
    const bool could_be_key = word.size() > kLongest && any([](char c) { return c >= '0' && c <= '9'; }) &&
                              any([](char c) { return c >= 'A' && c <= 'Z'; });
    out += could_be_key ? "..." : word;
    text.remove_prefix(end);
    if (text.empty()) break;
    out += static_cast<unsigned char>(text.front()) < ' ' ? ' ' : text.front();
    text.remove_prefix(1);
  }
  return out;
}

CredentialStore::CredentialStore(const StorageSettings& settings, const Clock& clock)
    : settings_(settings), clock_(clock) {
  MutexLock lock(mu_);
  current_ = look_up();
  if (current_) return;
  uses_source_ = settings_.key_source != nullptr;
  std::string name;
  const auto profile = read_profile(settings_, name);
  const auto found = std::find_if(kLeftToSource.begin(), kLeftToSource.end(),
                                  [&](const auto& key) { return !value_of(profile, key.first).empty(); });
  if (found != kLeftToSource.end()) {
    left_to_source_ = fmt::format("profile \"{}\" of the AWS files names {}", name, found->second);
  } else if (names_web_identity(settings_)) {
    left_to_source_ = "the environment names a web identity (AWS_WEB_IDENTITY_TOKEN_FILE)";
  } else {
    left_to_source_ =
        "no S3 credentials in the settings, the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or the AWS "
        "profile files (for a public bucket set storage.anonymous)";
    return;
  }
  if (!uses_source_) left_to_source_ += ", and nothing is there that could find its keys";
}

std::optional<Credentials> CredentialStore::look_up() const {
  Credentials found;
  if (!settings_.access_key_id.empty()) {
    found.keys = {settings_.access_key_id, settings_.secret_access_key, settings_.session_token};
    found.provider = "the settings";
    return found;
  }
  const Environment& env = settings_.environment;
  // As elsewhere in AWS land, a profile named by hand is meant more seriously than variables that happen to be set.
  if (settings_.profile.empty()) {
    const auto id = env("AWS_ACCESS_KEY_ID");
    const auto secret = env("AWS_SECRET_ACCESS_KEY");
    if (id && secret) {
      found.keys = {*id, *secret, env("AWS_SESSION_TOKEN").value_or("")};
      found.provider = "the environment (AWS_ACCESS_KEY_ID)";
      return found;
    }
  }
  std::string name;
  const auto profile = read_profile(settings_, name);
  const auto before_keys = std::span(kLeftToSource).first<kBeforeKeys>();
  const bool is_left = std::any_of(before_keys.begin(), before_keys.end(),
                                   [&](const auto& key) { return !value_of(profile, key.first).empty(); });
  if (is_left || names_web_identity(settings_)) return std::nullopt;
  found.keys = {value_of(profile, "aws_access_key_id"), value_of(profile, "aws_secret_access_key"),
                value_of(profile, "aws_session_token")};
  found.provider = fmt::format("profile \"{}\" of the AWS files", name);
  if (found.keys.access_key_id.empty() || found.keys.secret_access_key.empty()) return std::nullopt;
  return found;
}

Result<Credentials> CredentialStore::current() {
  MutexLock lock(mu_);
  const bool is_over = is_refused_ || (expires_at_ && clock_.now() >= *expires_at_);
  if (current_ && !is_over) return *current_;
  if (!uses_source_) return Status(Reason::kFetchCredentials, left_to_source_);
  if (!failure_.ok()) return failure_;
  if (!is_asked_) ask(false);
  return Status(Reason::kFetchKeysPending, fmt::format("{}: waiting for an answer", left_to_source_));
}

Refreshed CredentialStore::refresh(std::uint64_t generation) {
  MutexLock lock(mu_);
  if (current_ && current_->generation != generation) return Refreshed::kNew;  // another request was faster
  if (uses_source_) {
    if (!failure_.ok() || clock_.now() < same_until_) return Refreshed::kSame;
    if (!is_refused_) ask(true);
    is_refused_ = true;
    return Refreshed::kPending;
  }
  std::optional<Credentials> found = look_up();
  if (!found || (current_ && is_same(found->keys, current_->keys))) return Refreshed::kSame;
  replace(std::move(*found));
  return Refreshed::kNew;
}

std::string CredentialStore::provider() const {
  MutexLock lock(mu_);
  return current_ ? current_->provider : "nobody";
}

bool CredentialStore::is_betrayed_by(std::string_view text) const {
  const std::string decoded = percent_decode(text);
  const auto holds = [&](const S3Keys& keys) {
    for (const std::string* secret : {&keys.secret_access_key, &keys.session_token, &keys.access_key_id}) {
      if (!secret->empty() &&
          (text.find(*secret) != std::string_view::npos || decoded.find(*secret) != std::string::npos))
        return true;
    }
    return false;
  };
  MutexLock lock(mu_);
  return (current_ && holds(current_->keys)) || std::any_of(earlier_.begin(), earlier_.end(), holds);
}

void CredentialStore::replace(Credentials found) {
  found.generation = current_ ? current_->generation + 1 : 1;
  if (current_) earlier_.push_back(std::move(current_->keys));
  if (earlier_.size() > kEarlierKeys) earlier_.pop_front();
  current_ = std::move(found);
}

// --- of a source

void CredentialStore::ask(bool afresh) {
  is_asked_ = true;
  is_afresh_ = is_afresh_ || afresh;
  if (!thread_.joinable() && !is_stopped_) {
    thread_ = std::jthread([this](std::stop_token stop) { run(std::move(stop)); });
  }
  asked_.notify_all();
}

void CredentialStore::run(std::stop_token stop) {
  pthread_setname_np(pthread_self(), "stoker-keys");
  while (true) {
    bool afresh = false;
    {
      MutexLock lock(mu_);
      const auto is_due = [&]() STOKER_NO_ANALYSIS { return is_asked_ || clock_.now() >= due_; };
      while (!is_due() && !stop.stop_requested()) {
        asked_.wait_for(lock, stop, std::min<Nanos>(due_ - clock_.now(), std::chrono::hours(1)), is_due);
      }
      if (stop.stop_requested()) return;
      is_asked_ = true;
      afresh = std::exchange(is_afresh_, false);
    }
    Result<SourcedKeys> got = settings_.key_source->get(afresh, stop);
    if (stop.stop_requested()) return;
    const std::string line = take(std::move(got), afresh);
    if (!line.empty()) log(LogLevel::kWarning, line);
  }
}

std::string CredentialStore::take(Result<SourcedKeys> got, bool was_afresh) {
  MutexLock lock(mu_);
  is_asked_ = false;
  const Nanos now = clock_.now();
  if (!got.ok()) return take_failure(got.status(), was_afresh, now);
  if (got->valid_for && *got->valid_for <= Nanos(0)) {
    return take_failure(Status(Reason::kFetchCredentials, fmt::format("{} gave keys that have expired", got->provider)),
                        was_afresh, now);
  }
  return take_keys(std::move(got).value(), now);
}

std::string CredentialStore::take_keys(SourcedKeys got, Nanos now) {
  std::string line;
  if (!failure_.ok()) line = fmt::format("s3: {} gives keys again", got.provider);
  failure_ = Status();
  n_failures_ = 0;
  expires_at_.reset();
  due_ = Nanos::max();
  if (got.valid_for) {
    const Nanos valid_for = std::min<Nanos>(*got.valid_for, std::chrono::hours(24 * 365));
    expires_at_ = now + valid_for;
    due_ = now + std::max(valid_for - std::min(kMostAhead, valid_for / 10), kLeastPause);
  }
  if (!current_ || !is_same(current_->keys, got.keys)) {
    replace({std::move(got.keys), std::move(got.provider)});
    is_refused_ = is_afresh_ = false;
  } else if (is_refused_ && is_afresh_) {
    is_asked_ = true;  // refused while an ordinary question was under way
  } else if (std::exchange(is_refused_, false)) {
    same_until_ = now + kTrustSame;
  }
  return line;
}

std::string CredentialStore::take_failure(const Status& why, bool was_afresh, Nanos now) {
  const std::string text = without_likely_keys(why.message());
  failure_ = Status(Reason::kFetchCredentials, fmt::format("{}: {}", left_to_source_, text));
  is_afresh_ = is_afresh_ || was_afresh;
  due_ = now + std::min(kMostPause, kLeastPause * (1 << std::min(n_failures_, 5)));
  ++n_failures_;
  const bool is_usable = current_ && !is_refused_ && (!expires_at_ || *expires_at_ > now);
  if (!is_usable) return "";  // requests fail with it, and say so
  return fmt::format("s3: no new keys: {}; the present ones are good for another {:.0f} s", failure_.message(),
                     expires_at_ ? to_seconds(*expires_at_ - now) : 0.0);
}

void CredentialStore::stop() {
  std::jthread thread;
  {
    MutexLock lock(mu_);
    is_stopped_ = true;
    thread = std::move(thread_);
  }
  if (!thread.joinable()) return;
  thread.request_stop();
  settings_.key_source->join(thread);
}

}  // namespace stoker
