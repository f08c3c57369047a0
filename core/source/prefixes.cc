#include "source/prefixes.h"

#include <functional>
#include <string_view>

namespace stoker {
namespace {

constexpr int kFolders = 2;

// "a/b/" of "a/b/c/d.jpg"; "" of "d.jpg".
std::string_view first_folders(std::string_view path) {
  std::size_t end = 0;
  for (int n = 0; n < kFolders; ++n) {
    const std::size_t slash = path.find('/', end);
    if (slash == std::string_view::npos) break;
    end = slash + 1;
  }
  return path.substr(0, end);
}

std::string prefix_of(const Location& at) {
  if (at.kind == Location::Kind::kS3) return "s3://" + at.bucket + "/" + std::string(first_folders(at.key));
  if (at.kind != Location::Kind::kHttp) return "";
  std::string_view url = at.key;
  url = url.substr(0, url.find_first_of("?#"));
  const std::size_t colon = url.find("://");
  if (colon == std::string_view::npos) return std::string(url);
  const std::string scheme(url.substr(0, colon + 3));
  url.remove_prefix(colon + 3);
  const std::size_t end = std::min(url.find('/'), url.size());
  std::string_view host = url.substr(0, end);
  host.remove_prefix(host.rfind('@') == std::string_view::npos ? 0 : host.rfind('@') + 1);
  const std::string_view path = url.substr(std::min(end + 1, url.size()));
  return scheme + std::string(host) + "/" + std::string(first_folders(path));
}

}  // namespace

int Prefixes::number_of(const Location& at) {
  std::string prefix = prefix_of(at);
  const auto found = numbers_.find(prefix);
  if (found != numbers_.end()) return found->second;
  if (names_.size() >= kMost) return static_cast<int>(std::hash<std::string>()(prefix) % kMost);
  const int number = static_cast<int>(names_.size());
  names_.push_back(prefix);
  numbers_.emplace(std::move(prefix), number);
  return number;
}

}  // namespace stoker
