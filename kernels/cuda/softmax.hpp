// SPDX-License-Identifier: MIT
// Causal softmax of scores on the GPU. A row is one query of one head; g neighbouring rows are the heads of one query.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_buffer.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// Whose scores: rows = positions.size() * heads_per_query, `keys` scores each.
struct ScoreShape {
  const DeviceBuffer<std::int64_t>& positions;
  int heads_per_query;
  std::int64_t keys;
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(positions.size()) * heads_per_query; }
};

/// Scores -> probabilities, in place; keys after a query's position get 0.
void causal_softmax(const Context& context, const ScoreShape& shape, double* scores);

}  // namespace oscar::cuda
