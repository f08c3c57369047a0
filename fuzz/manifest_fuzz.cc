// A manifest's bytes before rows are known: gzip, zstd, and JSON lists cut into elements. However the input is cut into
// pieces, the same comes out, in bounded memory.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "manifest/array_scanner.h"
#include "manifest/unpack.h"

namespace {

constexpr std::size_t kMostUnpacked = std::size_t{8} << 20;  // a bomb is stopped by whoever takes the pieces

void require(bool holds) {
  if (!holds) std::abort();
}

struct Scanned {
  std::string lines;
  std::vector<stoker::RowLocation> at;
  stoker::Status status;
};

Scanned scan(std::string_view input, std::size_t n_piece) {
  Scanned out;
  stoker::ArrayScanner scanner(out.lines, out.at);
  for (std::size_t at = 0; at < input.size() && out.status.ok(); at += n_piece) {
    out.status = scanner.feed(input.substr(at, n_piece));
  }
  if (out.status.ok()) out.status = scanner.finish();
  return out;
}

void list(std::string_view input) {
  const Scanned whole = scan(input, std::max<std::size_t>(1, input.size()));
  const Scanned cut = scan(input, 1 + input.size() % 5);
  require(whole.status.reason() == cut.status.reason() && whole.lines == cut.lines);
  if (!whole.status.ok()) {
    require(whole.status.reason() == stoker::Reason::kManifest);
    return;
  }
  require(static_cast<std::size_t>(std::count(whole.lines.begin(), whole.lines.end(), '\n')) == whole.at.size());
  std::uint64_t end = 0;
  for (const stoker::RowLocation& at : whole.at) {
    require(at.offset >= end && at.n_bytes > 0 && at.offset + at.n_bytes <= input.size());
    end = at.offset + at.n_bytes;
  }
}

void packed(std::string_view input, stoker::Packing packing) {
  const auto unpacker = stoker::make_unpacker(packing);
  std::size_t n_out = 0;
  const stoker::PieceSink sink = [&](std::string_view piece) -> stoker::Status {
    n_out += piece.size();
    return n_out > kMostUnpacked ? stoker::Status(stoker::Reason::kStopped, "enough") : stoker::Status();
  };
  stoker::Status status;
  const std::size_t n_piece = 1 + input.size() % 4096;
  for (std::size_t at = 0; at < input.size() && status.ok(); at += n_piece) {
    status = unpacker->feed(input.substr(at, n_piece), sink);
  }
  if (status.ok()) status = unpacker->finish();
  using stoker::Reason;
  require(status.ok() || status.reason() == Reason::kManifest || status.reason() == Reason::kStopped ||
          status.reason() == Reason::kBudget);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const stoker::Packing packing = stoker::packing_of(input);
  if (packing == stoker::Packing::kNone) {
    list(input);
  } else {
    packed(input, packing);
  }
  return 0;
}
