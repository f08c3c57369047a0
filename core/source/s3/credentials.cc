#include "source/s3/credentials.h"

#include <cstdlib>
#include <fstream>
#include <utility>

#include <fmt/format.h>

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

CredentialStore::CredentialStore(const StorageSettings& settings) : settings_(settings) {
  MutexLock lock(mu_);
  current_ = look_up();
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
  found.keys = {value_of(profile, "aws_access_key_id"), value_of(profile, "aws_secret_access_key"),
                value_of(profile, "aws_session_token")};
  found.provider = fmt::format("profile \"{}\" of the AWS files", name);
  if (found.keys.access_key_id.empty() || found.keys.secret_access_key.empty()) return std::nullopt;
  return found;
}

Result<Credentials> CredentialStore::current() const {
  MutexLock lock(mu_);
  if (current_) return *current_;
  return Status(Reason::kFetchCredentials,
                "no S3 credentials in the settings, the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or the "
                "AWS profile files; "
                "for a public bucket set storage.anonymous");
}

bool CredentialStore::refresh(std::uint64_t generation) {
  MutexLock lock(mu_);
  if (current_ && current_->generation != generation) return true;  // another request was faster
  std::optional<Credentials> found = look_up();
  if (!found) return false;
  const bool is_same = current_ && found->keys.access_key_id == current_->keys.access_key_id &&
                       found->keys.secret_access_key == current_->keys.secret_access_key &&
                       found->keys.session_token == current_->keys.session_token;
  if (is_same) return false;
  found->generation = generation + 1;
  current_ = std::move(found);
  return true;
}

}  // namespace stoker
