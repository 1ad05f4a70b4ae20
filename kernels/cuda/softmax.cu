// SPDX-License-Identifier: MIT
// One block of threads a row; each thread takes every kThreads-th key.
#include <cfloat>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/mixed_row.cuh"
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

__global__ void mixed_softmax_row(const std::int64_t* positions, int heads_per_query, std::int64_t keys,
                                  Windows windows, float* window_scores, float* history_scores) {
  const std::int64_t first = std::int64_t{blockIdx.x} * keys;
  const MixedRow<float> row{window_scores + first, history_scores + first, positions[blockIdx.x / heads_per_query],
                            windows};
  float highest = -FLT_MAX;
  for (std::int64_t j = threadIdx.x; j <= row.position; j += kThreads) highest = fmaxf(highest, row.at(j));
  highest = block_max(highest);
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j <= row.position; j += kThreads) {
    sum += row.at(j) = expf(row.at(j) - highest);
  }
  const float scale = static_cast<float>(1.0 / block_sum(sum));
  for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) {
    row.store(j, j <= row.position ? row.at(j) * scale : 0.0F);
  }
}

}  // namespace

void causal_softmax(const Context& context, const ScoreShape& shape, double* scores) {
  softmax_row<<<static_cast<unsigned>(shape.rows()), kThreads, 0, context.stream()>>>(
      shape.positions.data(), shape.heads_per_query, shape.keys, scores);
  OSCAR_CUDA_LAUNCHED("softmax_row");
}

void mixed_softmax(const Context& context, const ScoreShape& shape, Windows windows, float* window_scores,
                   float* history_scores) {
  mixed_softmax_row<<<static_cast<unsigned>(shape.rows()), kThreads, 0, context.stream()>>>(
      shape.positions.data(), shape.heads_per_query, shape.keys, windows, window_scores, history_scores);
  OSCAR_CUDA_LAUNCHED("mixed_softmax_row");
}

}  // namespace oscar::cuda
