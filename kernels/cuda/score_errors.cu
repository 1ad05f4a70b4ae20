// SPDX-License-Identifier: MIT
// One block of threads a row; each thread takes every kThreads-th key. Means come first, squares of differences second.
#include <cfloat>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/mixed_row.cuh"
#include "kernels/cuda/score_errors.hpp"

namespace oscar::cuda {
namespace {

struct Softmax {
  double highest, log_sum;
  __device__ double log_probability(double score) const {
    return fmax(score - highest - log_sum, kLowestLogProbability);
  }
};

/// Over the keys that the row's query sees; score(j) is the score of key j.
template <class Score>
__device__ Softmax softmax_of(std::int64_t position, Score score) {
  double highest = -DBL_MAX;
  for (std::int64_t j = threadIdx.x; j <= position; j += kThreads) highest = fmax(highest, score(j));
  highest = block_max(highest);
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j <= position; j += kThreads) sum += exp(score(j) - highest);
  return {highest, log(block_sum(sum))};
}

__device__ void add_logit_errors(const double* exact, const MixedRow<double>& mixed, RowErrors& errors) {
  const auto keys = static_cast<double>(mixed.position + 1);
  double mean_error = 0;
  double mean = 0;
  for (std::int64_t j = threadIdx.x; j <= mixed.position; j += kThreads) {
    mean_error += mixed.at(j) - exact[j];
    mean += exact[j];
  }
  mean_error = block_sum(mean_error) / keys;
  mean = block_sum(mean) / keys;
  double error = 0;
  double norm = 0;
  for (std::int64_t j = threadIdx.x; j <= mixed.position; j += kThreads) {
    const double e = mixed.at(j) - exact[j] - mean_error;
    const double s = exact[j] - mean;
    error += e * e;
    norm += s * s;
  }
  errors.logit_error = block_sum(error);
  errors.logit_norm = block_sum(norm);
}

__global__ void compare_scores_row(const std::int64_t* positions, int heads_per_query, std::int64_t keys,
                                   Windows windows, double* exact, double* window, double* history,
                                   RowErrors* row_errors) {
  const std::int64_t first = std::int64_t{blockIdx.x} * keys;
  double* row = exact + first;
  const MixedRow<double> mixed{window + first, history + first, positions[blockIdx.x / heads_per_query], windows};
  RowErrors errors;
  add_logit_errors(row, mixed, errors);
  const Softmax a = softmax_of(mixed.position, [&](std::int64_t j) { return row[j]; });
  const Softmax b = softmax_of(mixed.position, [&](std::int64_t j) { return mixed.at(j); });
  double kl = 0;
  for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) {
    const bool seen = j <= mixed.position;
    const double p = seen ? exp(row[j] - a.highest - a.log_sum) : 0.0;
    if (seen) kl += p * (a.log_probability(row[j]) - b.log_probability(mixed.at(j)));
    mixed.store(j, seen ? exp(mixed.at(j) - b.highest - b.log_sum) : 0.0);
    row[j] = p;
  }
  errors.kl = block_sum(kl);
  if (threadIdx.x == 0) row_errors[blockIdx.x] = errors;
}

__global__ void compare_outputs_row(const double* exact, const double* mixed, std::int64_t dim, RowErrors* errors) {
  const std::int64_t first = std::int64_t{blockIdx.x} * dim;
  double error = 0;
  double norm = 0;
  for (std::int64_t i = first + threadIdx.x; i < first + dim; i += kThreads) {
    const double e = exact[i] - mixed[i];
    error += e * e;
    norm += exact[i] * exact[i];
  }
  error = block_sum(error);
  norm = block_sum(norm);
  if (threadIdx.x != 0) return;
  errors[blockIdx.x].output_error = error;
  errors[blockIdx.x].output_norm = norm;
}

}  // namespace

void compare_scores(const Context& context, const ScoreShape& shape, Windows windows, double* exact, double* window,
                    double* history, DeviceBuffer<RowErrors>& errors) {
  compare_scores_row<<<static_cast<unsigned>(shape.rows()), kThreads, 0, context.stream()>>>(
      shape.positions.data(), shape.heads_per_query, shape.keys, windows, exact, window, history, errors.data());
  OSCAR_CUDA_LAUNCHED("compare_scores_row");
}

void compare_outputs(const Context& context, const DeviceBuffer<double>& exact, const DeviceBuffer<double>& mixed,
                     std::int64_t dim, DeviceBuffer<RowErrors>& errors) {
  compare_outputs_row<<<static_cast<unsigned>(errors.size()), kThreads, 0, context.stream()>>>(
      exact.data(), mixed.data(), dim, errors.data());
  OSCAR_CUDA_LAUNCHED("compare_outputs_row");
}

}  // namespace oscar::cuda
