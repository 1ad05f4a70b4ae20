// SPDX-License-Identifier: MIT
// Files of tensor-parallel ranks, which hold different KV heads of the same data, as if they were one. For moments/
// only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "moments/statistics.hpp"
#include "moments/statistics_file.hpp"

namespace oscar {

/// What one file, or the files of several ranks together, say of themselves; sums are read layer by layer.
struct StatisticsPart {
  std::vector<std::filesystem::path> paths;  // by ascending heads
  Statistics manifest;

  /// "a.safetensors", or "a.safetensors, b.safetensors"
  [[nodiscard]] std::string name() const;
};

/// Puts shards of the same data together, which may leave heads out at either end (Statistics::heads). Throws DataError
/// that names the files: two ranks with the same heads, a gap between them, other layers or sums.
[[nodiscard]] std::vector<StatisticsPart> join_shards(std::vector<StatisticsPart> files);

/// Layer number `i` of the part, heads of all files in order.
[[nodiscard]] LayerStatistics read_layer(const std::vector<StatisticsFile>& files, std::size_t i);

}  // namespace oscar
