// The arrays of a pack as another process sends them: what is taken has the size that the plan says, and comes back as
// it went in.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "data/pack_wire.h"

namespace {

using stoker::Batch;
using stoker::PackLayout;
using stoker::PackShape;

void require(bool claim) {
  if (!claim) std::abort();
}

void comes_back(const Batch& batch) {
  const PackLayout layout = batch.layout();
  const auto tail = stoker::squeeze(batch);
  require(tail.ok());
  const auto block = stoker::expand(*tail, layout);
  require(block.ok() && (*block)->size() == layout.n_bytes - layout.pixel_bytes());
  require(std::memcmp((*block)->data(), batch.at(layout.pixel_bytes()), (*block)->size()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const PackShape shape{.tokens = data[0],
                        .samples = data[1] % 16,
                        .images = data[2] % 8,
                        .patches = data[2] % 32,
                        .clips = data[3] % 4,
                        .has_loss_weights = data[3] >= 128,
                        .has_padded_samples = data[3] % 128 >= 64,
                        .patch = 2};
  const PackLayout layout(shape);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 4, size - 4);

  Batch batch{.block = nullptr, .shape = shape, .planned = shape, .counts = {}};
  std::vector<std::byte> memory(layout.n_bytes);
  if (const auto block = stoker::expand(bytes, layout); block.ok()) {
    batch.block = *block;
    batch.pixels = stoker::block_over(std::span(memory).first(layout.pixel_bytes()), nullptr);
    comes_back(batch);
  } else {
    require(block.status().reason() == stoker::Reason::kPeerMismatch);
  }

  // Any content does.
  std::memcpy(memory.data(), bytes.data(), std::min(bytes.size(), memory.size()));
  batch.block = stoker::block_over(memory, nullptr);
  batch.pixels = nullptr;
  comes_back(batch);
  return 0;
}
