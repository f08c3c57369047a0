#pragma once

#include <string>
#include <vector>

namespace stoker {

/// The settings in which two fingerprints ("name=hash ...") differ, sorted by name.
std::vector<std::string> differing_settings(const std::string& a, const std::string& b);
/// The first of them, or "" if the fingerprints are equal.
std::string differing_setting(const std::string& a, const std::string& b);

}  // namespace stoker
