#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stoker {

/// The CRCs that object stores keep: reflected, begun with all ones and inverted at the end.
enum class Crc : std::uint8_t {
  k32,      ///< IEEE 802.3, as in gzip
  k32c,     ///< Castagnoli
  k64Nvme,  ///< the CRC-64 of the NVM Express base specification
};

/// The CRC of what `so_far` is the CRC of, followed by `bytes`; of nothing it is 0. Above ten gigabytes a second where
/// the CPU multiplies without carries. Pure. Threads: any.
std::uint64_t crc_of(Crc kind, std::uint64_t so_far, std::span<const std::byte> bytes);

}  // namespace stoker
