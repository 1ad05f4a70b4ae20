// SPDX-License-Identifier: MIT
// How compare() cuts its work into passes over candidates and KV heads, and each pass into blocks of queries, so that
// fp64 rows and scores need bounded memory. Pure functions of the shape: no result depends on what else runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/arguments.hpp"

namespace oscar::cuda {

/// The shape of a sequence: keys that some query sees, query heads of a KV head, channels.
struct CompareShape {
  int kv_heads = 1, g = 1;
  std::int64_t queries = 0, keys = 0;
  int key_dim = 0, value_dim = 0;
};

/// Candidates [first_candidate, + candidates) of KV heads [first_head, + heads), `block` queries at a time.
struct ComparePass {
  std::size_t first_candidate = 0, candidates = 0;
  int first_head = 0, heads = 0;
  std::int64_t block = 1;
};

/// Bytes of a pass: rows of keys and values, and what each query of a block adds.
struct PassBytes {
  std::size_t rows, per_query;
};
[[nodiscard]] PassBytes bytes_of_pass(const CompareShape& shape, std::span<const HistoryCodecs> candidates, int heads);

/// Every (candidate, head) in exactly one pass. Rows, and likewise scores, of a pass fit into `budget` bytes, unless
/// one candidate, head and query need more.
[[nodiscard]] std::vector<ComparePass> compare_passes(const CompareShape& shape,
                                                      std::span<const HistoryCodecs> candidates, std::size_t budget);

}  // namespace oscar::cuda
