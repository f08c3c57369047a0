#include "engine/made_wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/wire.h"
#include "data/lengths_wire.h"

namespace stoker {
namespace {

constexpr std::uint64_t kMagic = 0x53746f6b4d640001;  // counts up with every change of the message
constexpr std::size_t kMaxText = 16384;               // of one text
constexpr std::size_t kLeastLate = 8;                 // bytes of one: an index, and three texts, one of them a name

Status no_pack(std::string_view why) {
  return {Reason::kPeerMismatch, fmt::format("a worker sent what is no finished pack: {}. All processes of a run need "
                                             "the same version of Stoker",
                                             why)};
}

std::string_view cut(std::string_view text) { return text.substr(0, kMaxText); }

}  // namespace

std::string encode_made(const ReadyPack& pack) {
  MadeMessage out;
  out.pack.sequence = pack.task.sequence;
  out.pack.block_bytes = pack.batch.layout().n_bytes;
  out.pack.delivery.batch = pack.batch;
  out.pack.delivery.batch.block = nullptr;
  out.pack.delivery.n_samples = pack.n_samples_planned - static_cast<std::int64_t>(pack.found_late.size());
  for (const LedgerEntry& entry : pack.found_late) {
    out.found_late.push_back({entry.order_index, entry.media, entry.status});
  }
  out.stale = pack.stale;
  return encode_made(out);
}

std::string encode_made(const MadeMessage& message) {
  std::string bytes;
  WireWriter out(bytes);
  out.fixed64(kMagic);
  out.text(peers::encode(message.pack));
  out.varint(message.found_late.size());
  for (const LateSample& late : message.found_late) {
    out.varint(late.order_index);
    out.text(cut(late.media));
    put_reason(out, late.status.reason());
    out.text(cut(late.status.message()));
  }
  out.varint(message.stale.size());
  for (const Hash128& key : message.stale) {
    out.fixed64(key.high);
    out.fixed64(key.low);
  }
  return bytes;
}

Result<MadeMessage> decode_made(std::string_view bytes) {
  if (bytes.size() > kMaxMadeBytes) return no_pack(fmt::format("{} bytes", bytes.size()));
  WireReader in(bytes);
  if (in.fixed64() != kMagic) return no_pack("another version, or something else");
  auto inner = peers::decode(in.text(peers::kMaxMessageBytes));
  MadeMessage out;
  auto* pack = inner.ok() ? std::get_if<peers::Pack>(&*inner) : nullptr;
  if (pack == nullptr) return no_pack("its shape is missing");
  out.pack = std::move(*pack);
  if (out.pack.block_bytes != out.pack.delivery.batch.layout().n_bytes) return no_pack("its size and shape differ");
  for (std::uint64_t n = in.varint(in.n_left() / kLeastLate); n > 0 && in.ok(); --n) {
    LateSample late;
    late.order_index = in.varint();
    late.media = in.text(kMaxText);
    const Reason reason = take_reason(in);
    late.status = Status(reason, std::string(in.text(kMaxText)));
    const bool is_next = out.found_late.empty() || out.found_late.back().order_index < late.order_index;
    if (late.status.code() != Code::kBadSample || !is_next) in.fail();
    out.found_late.push_back(std::move(late));
  }
  for (std::uint64_t n = in.varint(in.n_left() / sizeof(Hash128)); n > 0 && in.ok(); --n) {
    Hash128 key;
    key.high = in.fixed64();
    key.low = in.fixed64();
    out.stale.push_back(key);
  }
  if (!in.is_at_end()) return no_pack("values out of range");
  return out;
}

}  // namespace stoker
