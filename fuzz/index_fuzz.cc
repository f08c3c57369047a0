// Files of the index and the records in them: what is taken is byte for byte what would be written.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "base/hash.h"
#include "base/wire.h"
#include "index/lengths_index.h"
#include "index/record_log.h"
#include "index/table.h"

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

void check_record(std::string_view bytes) {
  if (const auto text = stoker::decode_text(bytes)) require(stoker::encode_text(*text) == bytes);
  if (const auto media = stoker::decode_media(bytes)) require(stoker::encode_media(*media) == bytes);
}

/// The bytes as the only block of a table, with right checksums all round.
std::string table_of(std::string_view records, const stoker::Hash128& rules, const stoker::Hash128& first_key) {
  std::string file = "STKTAB1\n";
  file += records;
  stoker::WireWriter to(file);
  to.fixed64(stoker::hash64(records));
  const std::size_t blocks_end = file.size();
  std::string places;
  stoker::WireWriter place(places);
  place.fixed64(first_key.high);
  place.fixed64(first_key.low);
  place.fixed64(8);
  file += places;
  std::string foot;
  stoker::WireWriter end(foot);
  for (const std::uint64_t n : {rules.high, rules.low, std::uint64_t{1}, std::uint64_t{1}, std::uint64_t{blocks_end},
                                stoker::hash64(places), std::uint64_t{file.size() + 64}}) {
    end.fixed64(n);
  }
  end.fixed64(stoker::hash64(foot));
  return file + foot;
}

/// What is found in a table is what walking it gives, in order.
void check_table(std::string_view bytes, const stoker::Hash128& rules) {
  static const int fd = memfd_create("table", MFD_CLOEXEC);
  static const std::string path = "/proc/self/fd/" + std::to_string(fd);
  require(ftruncate(fd, 0) == 0 && pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  const auto table = stoker::Table::open(path, rules);
  if (!table.ok()) return;
  std::optional<stoker::Hash128> last;
  for (stoker::TableCursor at(*table); !at.is_at_end(); at.next()) {
    require(!last || *last < at.key());
    last = at.key();
    check_record(at.value());
    const auto found = (*table)->find(at.key());
    require(!found || *found == at.value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const stoker::Hash128 rules{1, 2};
  check_record(input);

  // As blocks of a log with a right head and right checksums, so that what lies behind these is looked at.
  std::string log = stoker::RecordLog::head(rules);
  const std::size_t half = input.size() / 2;
  for (const std::string_view payload : {input.substr(0, half), input.substr(half)}) {
    if (payload.size() <= stoker::RecordLog::kMostBlockBytes) log += stoker::RecordLog::block(payload);
  }
  std::string payload;
  stoker::RecordLog::read(log, rules, [&](const stoker::Hash128& key, std::string_view value) {
    stoker::RecordLog::add(payload, key, value);
    check_record(value);
  });
  require(std::string_view(input).starts_with(payload));  // whole blocks from the front, nothing passed over
  // Any bytes as a log: only a prefix of whole blocks is visited.
  stoker::RecordLog::read(std::string(log.substr(0, stoker::RecordLog::kHeadBytes)) + std::string(input), rules,
                          [](const stoker::Hash128&, std::string_view) {});
  check_table(input, rules);
  check_table(table_of(input, rules, {0, input.empty() ? 0u : static_cast<unsigned char>(input[0])}), rules);
  return 0;
}
