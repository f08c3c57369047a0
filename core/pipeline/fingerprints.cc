#include "pipeline/fingerprints.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace stoker {
namespace {

std::map<std::string, std::string> parts_of(const std::string& fingerprint) {
  std::map<std::string, std::string> out;
  std::istringstream in(fingerprint);
  for (std::string word; in >> word;) {
    const std::size_t equals = word.find('=');
    out[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
  }
  return out;
}

}  // namespace

std::vector<std::string> differing_settings(const std::string& a, const std::string& b) {
  const auto left = parts_of(a);
  const auto right = parts_of(b);
  std::vector<std::string> names;
  for (const auto& [name, value] : left) {
    const auto found = right.find(name);
    if (found == right.end() || found->second != value) names.push_back(name);
  }
  for (const auto& [name, value] : right) {
    if (!left.contains(name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string differing_setting(const std::string& a, const std::string& b) {
  const std::vector<std::string> names = differing_settings(a, b);
  return names.empty() ? "" : names.front();
}

}  // namespace stoker
