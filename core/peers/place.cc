#include "peers/place.h"

#include <unistd.h>

#include <utility>

#include "base/hash.h"

namespace stoker::peers {

Place Place::make(const std::string& job, std::int32_t dp_rank, std::int32_t rank, std::int32_t count,
                  std::string settings) {
  Digest digest;
  digest.add(job);
  digest.add_int(static_cast<std::int64_t>(geteuid()));
  digest.add_int(dp_rank);
  Place place{.rank = rank, .count = count, .settings = std::move(settings), .name = "", .desk = ""};
  place.desk = "stoker-desk-" + digest.hex();
  digest.add(place.settings);
  place.name = "stoker-" + digest.hex();
  return place;
}

}  // namespace stoker::peers
