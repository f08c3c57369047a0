#pragma once

#include <array>
#include <optional>
#include <string>

namespace stoker {

/// An IPv4 or IPv6 address.
struct IpAddress {
  int family = 0;  ///< AF_INET, AF_INET6
  std::array<unsigned char, 16> bytes{};

  /// "10.0.0.1", "::1"; nothing for a name.
  static std::optional<IpAddress> parse(const std::string& text);
  bool operator==(const IpAddress&) const = default;
};

}  // namespace stoker
