// SPDX-License-Identifier: MIT
// Q/K/V with planted structure, so that fits have known answers without any model.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "support/memory_source.hpp"

namespace oscar::test {

struct SyntheticLayer {
  std::int64_t tokens = 600;
  int query_heads = 4, kv_heads = 2, head_dim = 16;
  std::uint64_t seed = 1;
  /// Standard deviation of channel c is decay^c: the covariance is diagonal with a known order.
  double decay = 0.8;
};

/// One chunk, one sequence, bfloat16.
inline std::vector<MemoryChunk> synthetic_layer(const SyntheticLayer& options) {
  std::mt19937_64 random(options.seed);
  std::normal_distribution<double> normal;
  const auto make = [&](int heads) {
    Tensor tensor(DType::kF32, {options.tokens, heads, options.head_dim});
    int channel = 0;
    for (float& value : tensor.values<float>()) {
      value = static_cast<float>(normal(random) * std::pow(options.decay, channel));
      channel = (channel + 1) % options.head_dim;
    }
    return convert(tensor, DType::kBF16);
  };
  Tensor q = make(options.query_heads), k = make(options.kv_heads), v = make(options.kv_heads);
  return {{std::move(q), std::move(k), std::move(v), {{0, options.tokens}}}};
}

}  // namespace oscar::test
