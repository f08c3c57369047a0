#include "pipeline/ledger.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "text/utf8.h"

namespace stoker {

std::string json_quoted(std::string_view text) {
  std::string repaired;
  std::vector<text::ByteSpan> none;
  text::repair_utf8(text, repaired, none);  // messages may quote bytes of what was no picture
  std::string out = "\"";
  for (const char c : repaired) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += fmt::format("\\u{:04x}", byte);
    } else {
      out += c;
    }
  }
  out += '"';
  return out;
}

std::string ledger_line(const LedgerEntry& entry, const Dataset& dataset) {
  const RowLocation at = dataset.manifest(entry.entry.source).row(entry.entry.row);
  return fmt::format(
      "{{\"pass\": {}, \"order_index\": {}, \"manifest\": {}, \"line\": {}, \"byte_offset\": {}, \"media\": {}, "
      "\"code\": \"{}\", "
      "\"message\": {}}}\n",
      entry.entry.pass, entry.order_index, json_quoted(dataset.name(entry.entry.source)),
      at.line == 0 ? "null" : std::to_string(at.line), at.offset,
      entry.media.empty() ? "null" : json_quoted(entry.media), name_of(entry.status.reason()),
      json_quoted(entry.status.message()));
}

Ledger::~Ledger() {
  if (fd_ >= 0) close(fd_);
}

Status Ledger::append(std::span<const LedgerEntry> entries, const Dataset& dataset) {
  if (path_.empty() || entries.empty()) return {};
  auto failed = [&] {
    return Status(Reason::kIndexDir, fmt::format("cannot write the ledger {}: {}", path_, std::strerror(errno)));
  };
  if (fd_ < 0) {
    const auto folder = std::filesystem::path(path_).parent_path();
    std::error_code ignored;
    if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
    fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd_ < 0) return failed();
  }
  for (const LedgerEntry& entry : entries) {
    const std::string line = ledger_line(entry, dataset);
    if (write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) return failed();
  }
  return {};
}

}  // namespace stoker
