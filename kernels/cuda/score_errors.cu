// SPDX-License-Identifier: MIT
// Each thread takes every kThreads-th key. Means and maxima come first, what is measured from them second.
#include <cfloat>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/score_errors.hpp"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {
namespace {

/// blockIdx: x the row, y the head, z the codec or candidate.
struct Row {
  std::int64_t position;
  std::int64_t buffer;      // number of its row in a buffer of one codec's rows
  std::int64_t all_buffer;  // in one of all codecs' rows
  std::int64_t result, all_results;

  __device__ Row(const QueryBlock& block, const PassErrors& errors)
      : position(block.positions[blockIdx.x / block.g]),
        buffer(blockIdx.y * block.capacity + blockIdx.x),
        all_buffer(blockIdx.z * block.heads * block.capacity + buffer),
        result(blockIdx.y * errors.total + errors.first_row + blockIdx.x),
        all_results(blockIdx.z * block.heads * errors.total + result) {}
};

__global__ void exact_softmax_row(QueryBlock block, const double* scores, double* probabilities, ExactRow* rows,
                                  PassErrors errors) {
  const Row row(block, errors);
  const double* s = scores + row.buffer * block.stride;
  double* p = probabilities + row.buffer * block.stride;
  double mean = 0;
  double highest = -DBL_MAX;
  for (std::int64_t j = threadIdx.x; j <= row.position; j += kThreads) {
    mean += s[j];
    highest = fmax(highest, s[j]);
  }
  mean = block_sum(mean) / static_cast<double>(row.position + 1);
  highest = block_max(highest);
  double norm = 0;
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j <= row.position; j += kThreads) {
    norm += (s[j] - mean) * (s[j] - mean);
    sum += exp(s[j] - highest);
  }
  norm = block_sum(norm);
  const double log_sum = log(block_sum(sum));
  for (std::int64_t j = threadIdx.x; j < block.keys; j += kThreads) {
    p[j] = j <= row.position ? exp(s[j] - highest - log_sum) : 0.0;
  }
  if (threadIdx.x != 0) return;
  rows[row.buffer] = {highest, log_sum};
  errors.logit_norm[row.result] = norm;
}

/// Logarithms of probabilities below 1e-300 count as that of 1e-300.
__device__ double log_probability(double score, double highest, double log_sum) {
  return fmax(score - highest - log_sum, kLowestLogProbability);
}

__global__ void mixed_softmax_row(QueryBlock block, MixedScores scores, PassErrors errors) {
  const Row row(block, errors);
  const double* exact = scores.exact + row.buffer * block.stride;
  const double* p = scores.probabilities + row.buffer * block.stride;
  const double* window = scores.window + row.buffer * block.stride;
  double* history = scores.history + row.all_buffer * block.stride;
  double* window_weights = scores.window_weights + row.all_buffer * block.stride;
  const auto mixed = [&](std::int64_t j) { return in_window(j, row.position, block.windows) ? window[j] : history[j]; };
  double mean_error = 0;
  double highest = -DBL_MAX;
  for (std::int64_t j = threadIdx.x; j <= row.position; j += kThreads) {
    mean_error += mixed(j) - exact[j];
    highest = fmax(highest, mixed(j));
  }
  mean_error = block_sum(mean_error) / static_cast<double>(row.position + 1);
  highest = block_max(highest);
  double error = 0;
  double sum = 0;
  for (std::int64_t j = threadIdx.x; j <= row.position; j += kThreads) {
    const double e = mixed(j) - exact[j] - mean_error;
    error += e * e;
    sum += exp(mixed(j) - highest);
  }
  error = block_sum(error);
  const double log_sum = log(block_sum(sum));
  const ExactRow a = scores.rows[row.buffer];
  double kl = 0, needle_mass = 0, needle_kept = 0;
  for (std::int64_t j = threadIdx.x; j < block.keys; j += kThreads) {
    const bool seen = j <= row.position;
    const double score = seen ? mixed(j) : 0.0;
    if (seen) {
      kl += p[j] * (log_probability(exact[j], a.highest, a.log_sum) - log_probability(score, highest, log_sum));
    }
    const double weight = seen ? exp(score - highest - log_sum) : 0.0;
    const bool stored = in_window(j, row.position, block.windows);
    if (seen && !stored && p[j] >= kNeedleShare) {
      needle_mass += p[j];
      needle_kept += fmin(p[j], weight);
    }
    window_weights[j] = stored ? weight : 0.0;
    history[j] = stored ? 0.0 : weight;
  }
  kl = block_sum(kl);
  needle_mass = block_sum(needle_mass);
  needle_kept = block_sum(needle_kept);
  if (threadIdx.x != 0) return;
  if (blockIdx.z == 0) errors.needle_mass[row.result] = needle_mass;
  errors.needle_kept[row.all_results] = needle_kept;
  errors.kl[row.all_results] = kl;
  errors.logit_error[row.all_results] = error;
}

/// One warp a row.
__global__ void output_errors_row(QueryBlock block, const double* exact, const double* mixed, int dim,
                                  PassErrors errors) {
  const Row row(block, errors);
  const double* o = exact + row.buffer * dim;
  const double* o_hat = mixed + row.all_buffer * dim;
  double error = 0;
  double norm = 0, mixed_norm = 0, product = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim; i += kWarp) {
    const double e = o[i] - o_hat[i];
    error += e * e;
    norm += o[i] * o[i];
    mixed_norm += o_hat[i] * o_hat[i];
    product += o[i] * o_hat[i];
  }
  error = warp_sum(error);
  norm = warp_sum(norm);
  mixed_norm = warp_sum(mixed_norm);
  product = warp_sum(product);
  if (threadIdx.x != 0) return;
  errors.output_error[row.all_results] = error;
  errors.output_cosine[row.all_results] = norm > 0 && mixed_norm > 0 ? product / sqrt(norm * mixed_norm) : 0.0;
  if (blockIdx.z == 0) errors.output_norm[row.result] = norm;
}

dim3 grid_of(const QueryBlock& block, std::size_t copies) {
  return {static_cast<unsigned>(block.rows), static_cast<unsigned>(block.heads), static_cast<unsigned>(copies)};
}

}  // namespace

void exact_softmax(const Context& context, const QueryBlock& block, const double* scores, double* probabilities,
                   ExactRow* rows, const PassErrors& errors) {
  exact_softmax_row<<<grid_of(block, 1), kThreads, 0, context.stream()>>>(block, scores, probabilities, rows, errors);
  OSCAR_CUDA_LAUNCHED("exact_softmax_row");
}

void mixed_softmax(const Context& context, const QueryBlock& block, const MixedScores& scores, std::size_t codecs,
                   const PassErrors& errors) {
  mixed_softmax_row<<<grid_of(block, codecs), kThreads, 0, context.stream()>>>(block, scores, errors);
  OSCAR_CUDA_LAUNCHED("mixed_softmax_row");
}

void output_errors(const Context& context, const QueryBlock& block, const double* exact, const double* mixed, int dim,
                   std::size_t candidates, const PassErrors& errors) {
  output_errors_row<<<grid_of(block, candidates), kWarp, 0, context.stream()>>>(block, exact, mixed, dim, errors);
  OSCAR_CUDA_LAUNCHED("output_errors_row");
}

}  // namespace oscar::cuda
