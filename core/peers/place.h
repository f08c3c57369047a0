#pragma once

#include <cstdint>
#include <string>

namespace stoker::peers {

/// One of the processes of a node that get the same batches, and where they meet.
struct Place {
  std::int32_t rank = 0;   ///< 0 leads: it prepares, the others read
  std::int32_t count = 1;  ///< on this node
  std::string settings;    ///< "name=hash ..." of all that they must have in common
  std::string name;  ///< of the leader's socket; another one for other settings, so that loaders can be open at once
  std::string desk;  ///< the same for all loaders of the data-parallel rank: where a difference is found out
  /// The first name in which two texts like `settings` differ.
  std::string (*differing)(const std::string&, const std::string&) = nullptr;

  /// @param job  Names the run, and its attempt, among others on the machine.
  static Place make(const std::string& job, std::int32_t dp_rank, std::int32_t rank, std::int32_t count,
                    std::string settings);
};

}  // namespace stoker::peers
