// SPDX-License-Identifier: MIT
// Attention over a mixed-precision KV cache: a kernel that is written to be read, and what it reads.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {

/// The keys or the values of a cache; rows are (KV heads, keys).
struct CacheSide {
  RowsView stored, decoded;  // as windows and as the history have them
};

/// ScoreRule on the GPU.
struct ScoreRuleView {
  float soft_cap = 0;
  std::int64_t reach = 0;
  const float* sinks = nullptr;  // (KV heads, g); null: none
};

struct MixedCache {
  CacheSide key, value;
  std::int64_t keys = 0;
  int kv_heads = 0;
  Windows windows;
  ScoreRuleView scores;
};

/// `count` query tokens with g heads for each KV head.
struct CacheQueries {
  RowsView rows;                  // (KV heads, queries, g), in transformed coordinates
  const std::int64_t* positions;  // of the queries among the keys, ascending
  std::int64_t count;
  int g;
};

/// out (queries, KV heads * g, d_v) = softmax(q k^T / sqrt(d)) v, scores by the cache's rule, in transformed
/// coordinates; kServing's `round_outputs` rounds it to bfloat16. Head sizes up to 256; throws UsageError for larger
/// ones.
void mixed_attention(const Context& context, const CacheQueries& queries, const MixedCache& cache, bool round_outputs,
                     float* out);

}  // namespace oscar::cuda
