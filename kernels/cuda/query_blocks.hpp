// SPDX-License-Identifier: MIT
// Attention goes block by block of queries, so that scores need bounded memory: at most 2^23 of them (64 MiB of
// doubles) a buffer, unless one query has more.
#pragma once

#include <algorithm>
#include <cstdint>

namespace oscar::cuda {

[[nodiscard]] inline std::int64_t queries_per_block(int heads_per_query, std::int64_t keys) {
  constexpr std::int64_t kScores = std::int64_t{1} << 23;
  return std::clamp<std::int64_t>(kScores / (heads_per_query * std::max<std::int64_t>(keys, 1)), 1, 1024);
}

/// task(first, count) for blocks of `queries` queries, in order.
template <class Task>
void for_each_query_block(std::int64_t queries, std::int64_t block, const Task& task) {
  for (std::int64_t first = 0; first < queries; first += block) task(first, std::min(block, queries - first));
}

}  // namespace oscar::cuda
