// What a parser alone takes for a manifest: reads it in blocks and parses every row with simdjson. Prints the rows.

#include <fcntl.h>
#include <fmt/format.h>
#include <simdjson.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>

int main(int argc, char** argv) {
  const int file = argc == 2 ? ::open(argv[1], O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) {
    fmt::print(stderr, "usage: index_bench FILE\n");
    return 2;
  }
  constexpr std::size_t kBlockBytes = std::size_t{16} << 20;
  std::string block(kBlockBytes + simdjson::SIMDJSON_PADDING, '\0');
  simdjson::dom::parser parser;
  std::size_t n_have = 0;
  std::uint64_t n_rows = 0;
  while (true) {
    const ssize_t n_read = ::read(file, block.data() + n_have, kBlockBytes - n_have);
    if (n_read < 0) return 1;
    n_have += static_cast<std::size_t>(n_read);
    const void* last = n_read == 0 ? nullptr : ::memrchr(block.data(), '\n', n_have);
    const std::size_t n_whole =
        last == nullptr ? n_have : static_cast<std::size_t>(static_cast<const char*>(last) - block.data()) + 1;
    simdjson::dom::document_stream rows;
    if (n_whole == 0) break;
    if (parser.parse_many(block.data(), n_whole, kBlockBytes).get(rows) != simdjson::SUCCESS) return 1;
    for (const auto row : rows) {
      if (row.error() != simdjson::SUCCESS) return 1;
      ++n_rows;
    }
    if (n_read == 0) break;
    std::memmove(block.data(), block.data() + n_whole, n_have - n_whole);
    n_have -= n_whole;
  }
  ::close(file);
  fmt::print("{}\n", n_rows);
  return 0;
}
