#include "data/pack_wire.h"

#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

namespace stoker {
namespace {

constexpr int kLevel = 1;
constexpr std::size_t kLine = 64;

/// Positions mostly count up by one, which repeats nothing; their differences do. Of 16,384 tokens with pictures the
/// whole takes a fifth of the bytes and a tenth of the time with them.
class Positions {
 public:
  /// @param tail  What lies behind the patches, on a line of 64 bytes.
  Positions(std::byte* tail, const PackLayout& layout)
      : first_(reinterpret_cast<std::uint64_t*>(tail + (layout.position_ids - layout.pixel_bytes()))),
        n_((layout.loss_weights - layout.position_ids) / sizeof(std::uint64_t)) {}

  void to_differences() {
    for (std::size_t i = n_; i > 1; --i) first_[i - 1] -= first_[i - 2];
  }
  void from_differences() {
    for (std::size_t i = 1; i < n_; ++i) first_[i] += first_[i - 1];
  }

 private:
  std::uint64_t* const first_;
  const std::size_t n_;
};

struct Freed {
  void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t(kLine)); }
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
};
using Memory = std::unique_ptr<std::byte, Freed>;

Memory allocate(std::size_t n_bytes) {
  return Memory(static_cast<std::byte*>(::operator new(n_bytes, std::align_val_t(kLine), std::nothrow)));
}

Status no_memory(std::size_t n_bytes) {
  return Status(Reason::kBudget, "no memory for the " + std::to_string(n_bytes) + " bytes of a pack's arrays");
}

Status damaged(const std::string& how) {
  return Status(Reason::kPeerMismatch, "the arrays of a pack came damaged from the process that made it: " + how);
}

}  // namespace

std::span<const std::byte> pixels_of(const Batch& batch) {
  const std::size_t n = batch.layout().pixel_bytes();
  return {n > 0 ? batch.at(0) : nullptr, n};
}

Result<std::string> squeeze(const Batch& batch) {
  const PackLayout layout = batch.layout();
  const std::size_t n = layout.n_bytes - layout.pixel_bytes();
  const Memory tail = allocate(n);
  const std::unique_ptr<ZSTD_CCtx, Freed> context(ZSTD_createCCtx());
  if (!tail || !context) return no_memory(n);
  std::memcpy(tail.get(), batch.at(layout.pixel_bytes()), n);
  Positions(tail.get(), layout).to_differences();
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
  std::string out(ZSTD_compressBound(n), '\0');
  const std::size_t size = ZSTD_compress2(context.get(), out.data(), out.size(), tail.get(), n);
  if (ZSTD_isError(size)) return Status(Reason::kInternal, std::string("zstd: ") + ZSTD_getErrorName(size));
  out.resize(size);
  out.shrink_to_fit();
  return out;
}

Result<std::shared_ptr<const Block>> expand(std::string_view bytes, const PackLayout& layout) {
  const std::size_t n = layout.n_bytes - layout.pixel_bytes();
  if (n > kMaxTailBytes) return damaged("it has more tokens than any pack");
  if (ZSTD_findFrameCompressedSize(bytes.data(), bytes.size()) != bytes.size() ||
      ZSTD_getFrameContentSize(bytes.data(), bytes.size()) != n) {
    return damaged("they are not " + std::to_string(n) + " bytes");
  }
  Memory tail = allocate(n);
  if (!tail) return no_memory(n);
  const std::size_t size = ZSTD_decompress(tail.get(), n, bytes.data(), bytes.size());
  if (ZSTD_isError(size)) return damaged(ZSTD_getErrorName(size));
  if (size != n) return damaged("they end too early");
  Positions(tail.get(), layout).from_differences();
  const std::span<const std::byte> memory(tail.get(), n);
  return block_over(memory, std::shared_ptr<const std::byte>(std::move(tail)));
}

}  // namespace stoker
