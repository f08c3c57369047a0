#include "pipeline/header_size.h"

#include <algorithm>

namespace stoker {

void HeaderSize::learned(std::uint64_t needed, std::uint64_t total) {
  const std::size_t at = n_learned_++ % kRemembered;
  if (at == last_.size()) {
    last_.push_back({needed, total});
  } else {
    last_[at] = {needed, total};
  }
  if (n_learned_ % kPerLook != 0) return;
  size_ = *std::min_element(kSizes.begin(), kSizes.end(),
                            [this](std::uint64_t a, std::uint64_t b) { return cost(a) < cost(b); });
}

// Bytes, requests counted as bytes, that such a first read costs this rank beside the objects that it needs.
double HeaderSize::cost(std::uint64_t size) const {
  const auto used = 1.0 / dp_size_;
  double sum = 0;
  for (const Header& header : last_) {
    if (header.total <= std::min(size, kMostWhole)) {
      sum += static_cast<double>(header.total) * (1 - used);
      continue;
    }
    sum += static_cast<double>(kRequest) * used;  // for the body
    sum += static_cast<double>(header.needed <= size ? std::min(size, header.total) : header.needed + kRequest);
  }
  return sum;
}

}  // namespace stoker
