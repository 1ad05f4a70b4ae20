// SPDX-License-Identifier: MIT
// One block of threads a row; each thread takes every kThreads-th key.
#include <cfloat>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/softmax.hpp"

namespace oscar::cuda {
namespace {

__global__ void softmax_row(const std::int64_t* positions, int heads_per_query, std::int64_t keys, double* scores) {
  double* row = scores + std::int64_t{blockIdx.x} * keys;
  const std::int64_t position = positions[blockIdx.x / heads_per_query];
  double highest = -DBL_MAX;
  for (std::int64_t j = threadIdx.x; j <= position; j += kThreads) highest = fmax(highest, row[j]);
  highest = block_max(highest);
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j <= position; j += kThreads) sum += row[j] = exp(row[j] - highest);
  sum = block_sum(sum);
  for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) row[j] = j <= position ? row[j] / sum : 0.0;
}

}  // namespace

void causal_softmax(const Context& context, const ScoreShape& shape, double* scores) {
  softmax_row<<<static_cast<unsigned>(shape.rows()), kThreads, 0, context.stream()>>>(
      shape.positions.data(), shape.heads_per_query, shape.keys, scores);
  OSCAR_CUDA_LAUNCHED("softmax_row");
}

}  // namespace oscar::cuda
