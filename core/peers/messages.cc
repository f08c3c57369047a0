#include "peers/messages.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "base/wire.h"

namespace stoker::peers {
namespace {

constexpr std::uint64_t kMagic = 0x53746f6b65720001;  // counts up with every change of a message
constexpr std::size_t kMaxText = 16384;               // of one text; a message has one long text at most
constexpr std::size_t kMaxBad = 256;                  // reasons counted in one delivery

template <typename M, typename T>
concept Is = std::is_same_v<std::remove_cvref_t<M>, T>;
template <typename M>
concept HasOneMember = Is<M, Start> || Is<M, Want> || Is<M, Taken> || Is<M, Released> || Is<M, Leave> ||
    Is<M, Refused> || Is<M, Progress> || Is<M, Started> || Is<M, Forget>;

// Every member of a message in the order in which it is sent. A structured binding does not compile when a member is
// added, so none is forgotten: add it to both lists, and count kMagic up.
auto members(HasOneMember auto& m) {
  auto& [only] = m;
  return std::tie(only);
}
auto members(Is<End> auto& m) {
  auto& [status, bad] = m;
  return std::tie(status, bad);
}
auto members(Is<Hello> auto& m) {
  auto& [rank, settings] = m;
  return std::tie(rank, settings);
}
auto members(Is<Welcome> auto& m) {
  auto& [fingerprint, pixels] = m;
  return std::tie(fingerprint, pixels);
}
auto members(Is<Pack> auto& m) {
  auto& [sequence, block_id, block_bytes, delivery] = m;
  return std::tie(sequence, block_id, block_bytes, delivery);
}
auto members(Is<Delivery> auto& m) {
  auto& [batch, n_samples, is_last_of_step, state_after, bad] = m;
  return std::tie(batch, n_samples, is_last_of_step, state_after, bad);
}
auto members(Is<Batch> auto& m) {
  auto& [block, pixels, shape, planned, max_seqlen, counts] = m;
  return std::tie(shape, planned, max_seqlen, counts);
}
auto members(Is<PackShape> auto& m) {
  auto& [tokens, tail, samples, images, patches, clips, clip_patches, has_weights, has_padded, has_fixed_width, patch,
         temporal_patch, merge, image_id, video_id, pad_id] = m;
  return std::tie(tokens, tail, samples, images, patches, clips, clip_patches, has_weights, has_padded, has_fixed_width,
                  patch, temporal_patch, merge, image_id, video_id, pad_id);
}
auto members(Is<BatchCounts> auto& m) {
  auto& [tokens, pad_tokens, targets, step_targets, is_upper, patches, video_patches, cost, step, micro_batch,
         n_micro] = m;
  return std::tie(tokens, pad_tokens, targets, step_targets, is_upper, patches, video_patches, cost, step, micro_batch,
                  n_micro);
}
auto members(Is<PlanState> auto& m) {
  auto& [step, window, packs_delivered, window_digest] = m;
  return std::tie(step, window, packs_delivered, window_digest);
}
auto members(Is<PixelFacts> auto& m) {
  auto& [image_mean, image_std, clip_mean, clip_std, image_rescale, clip_rescale, patch, merge, temporal_patch] = m;
  return std::tie(image_mean, image_std, clip_mean, clip_std, image_rescale, clip_rescale, patch, merge,
                  temporal_patch);
}

template <typename T>
void put(WireWriter& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out.byte(value ? 1 : 0);
  } else if constexpr (std::is_integral_v<T>) {
    out.fixed64(static_cast<std::uint64_t>(value));
  } else if constexpr (std::is_same_v<T, double>) {
    out.fixed64(std::bit_cast<std::uint64_t>(value));
  } else if constexpr (std::is_same_v<T, std::string>) {
    out.text(std::string_view(value).substr(0, kMaxText));
  } else if constexpr (std::is_same_v<T, std::array<double, 3>>) {
    for (const double each : value) put(out, each);
  } else if constexpr (std::is_same_v<T, Reason>) {
    out.text(name_of(value));  // the table's order is free
  } else if constexpr (std::is_same_v<T, Status>) {
    put(out, value.reason());
    put(out, value.message());
  } else if constexpr (std::is_same_v<T, BadCounts>) {
    const std::size_t n = std::min(value.size(), kMaxBad);
    out.varint(n);
    for (std::size_t i = 0; i < n; ++i) {
      put(out, value[i].first);
      put(out, value[i].second);
    }
  } else {
    std::apply([&out](const auto&... each) { (put(out, each), ...); }, members(value));
  }
}

template <typename T>
void get(WireReader& in, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    const std::uint8_t byte = in.byte();
    if (byte > 1) in.fail();
    value = byte == 1;
  } else if constexpr (std::is_integral_v<T>) {
    const std::uint64_t bits = in.fixed64();
    value = static_cast<T>(bits);
    if (static_cast<std::uint64_t>(value) != bits) in.fail();
  } else if constexpr (std::is_same_v<T, double>) {
    value = std::bit_cast<double>(in.fixed64());
  } else if constexpr (std::is_same_v<T, std::string>) {
    value = in.text(kMaxText);
  } else if constexpr (std::is_same_v<T, std::array<double, 3>>) {
    for (double& each : value) get(in, each);
  } else if constexpr (std::is_same_v<T, Reason>) {
    const auto found = reason_named(in.text(kMaxText));
    if (!found) in.fail();
    value = found.value_or(Reason::kNone);
  } else if constexpr (std::is_same_v<T, Status>) {
    Reason reason{};
    std::string message;
    get(in, reason);
    get(in, message);
    value = reason == Reason::kNone ? Status() : Status(reason, std::move(message));
  } else if constexpr (std::is_same_v<T, BadCounts>) {
    value.resize(in.varint(kMaxBad));
    for (auto& [reason, n] : value) {
      get(in, reason);
      get(in, n);
    }
  } else {
    std::apply([&in](auto&... each) { (get(in, each), ...); }, members(value));
  }
}

/// Whether every count is in a range in which no sum or product of the layout can overflow.
bool is_sane(const PackShape& shape) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  const std::int64_t counts[] = {shape.tokens,  shape.tail_tokens, shape.samples,     shape.images,
                                 shape.patches, shape.clips,       shape.clip_patches};
  return std::all_of(std::begin(counts), std::end(counts), [](std::int64_t n) { return n >= 0 && n < kMany; }) &&
         shape.patch > 0 && shape.patch <= 64 && shape.temporal_patch > 0 && shape.temporal_patch <= 16;
}

bool is_sane(const Pack& pack) {
  const Batch& batch = pack.delivery.batch;
  const PackShape& has = batch.shape;
  const PackShape& planned = batch.planned;
  if (!is_sane(has) || !is_sane(planned) || pack.block_bytes == 0) return false;
  // What is there lies where it was planned, and never takes more room.
  const bool fits = has.tokens <= planned.tokens && has.samples <= planned.samples && has.images <= planned.images &&
                    has.patches <= planned.patches && has.clips <= planned.clips &&
                    has.clip_patches <= planned.clip_patches && has.patch == planned.patch &&
                    has.temporal_patch == planned.temporal_patch && has.has_loss_weights == planned.has_loss_weights &&
                    has.has_padded_samples == planned.has_padded_samples;
  return fits && batch.layout().n_bytes <= pack.block_bytes;
}

template <std::size_t I = 0>
void get_kind(WireReader& in, std::size_t kind, Message& message) {
  if constexpr (I < std::variant_size_v<Message>) {
    if (kind == I) return get(in, message.emplace<I>());
    get_kind<I + 1>(in, kind, message);
  } else {
    in.fail();
  }
}

}  // namespace

std::string encode(const Message& message) {
  std::string bytes;
  WireWriter out(bytes);
  out.fixed64(kMagic);
  out.byte(static_cast<std::uint8_t>(message.index()));
  std::visit([&out](const auto& m) { put(out, m); }, message);
  return bytes;
}

Result<Message> decode(std::string_view bytes) {
  WireReader in(bytes);
  if (in.fixed64() != kMagic) {
    return Status(Reason::kPeerMismatch, "a peer runs another version of Stoker, or is none");
  }
  Message message;
  get_kind(in, in.byte(), message);
  const auto* pack = std::get_if<Pack>(&message);
  if (!in.is_at_end() || (pack != nullptr && !is_sane(*pack))) {
    return Status(Reason::kPeerMismatch, "a peer sent what is no message");
  }
  return message;
}

}  // namespace stoker::peers
