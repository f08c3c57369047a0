#include "source/http/ip_address.h"

#include <arpa/inet.h>

namespace stoker {

std::optional<IpAddress> IpAddress::parse(const std::string& text) {
  IpAddress address;
  for (const int family : {AF_INET, AF_INET6}) {
    address.family = family;
    if (inet_pton(family, text.c_str(), address.bytes.data()) == 1) return address;
  }
  return std::nullopt;
}

}  // namespace stoker
