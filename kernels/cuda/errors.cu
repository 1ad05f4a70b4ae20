// SPDX-License-Identifier: MIT
// What the cache does to scores, outputs and rows: the sums of AttentionErrors, in fp64.
#include <algorithm>
#include <cfloat>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/compare.hpp"
#include "kernels/cuda/held_sequence.hpp"
#include "kernels/cuda/row_codec.hpp"
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
  const double log = score - highest - log_sum;
  return log < kLowestLogProbability ? kLowestLogProbability : log;  // what is no number stays none
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
      needle_kept += p[j] < weight ? p[j] : weight;  // not a number where the weight is none
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

namespace {

constexpr std::int64_t kValuesPerBlock = std::int64_t{1} << 14;
/// Values that are rotated and decoded at a time: 32 MiB of doubles.
constexpr std::int64_t kValuesAtATime = std::int64_t{1} << 22;

struct Energies {
  double signal, noise;
};

/// errors: exact rows, dense, become exact - history.
__global__ void subtract_history(double* errors, RowsView history) {
  const std::int64_t i = task_index();
  if (i >= history.count() * history.dim) return;
  errors[i] = static_cast<float>(errors[i]) - history.value(history.offset(i / history.dim) + i % history.dim);
}

/// Of kValuesPerBlock values of head blockIdx.y a block: native values and errors, in any order. energies:
/// (heads, gridDim.x).
__global__ void add_energies(const double* errors, RowsView native, Energies* energies) {
  const std::int64_t values = native.rows_per_head * native.dim;
  const std::int64_t begin = blockIdx.y * values;
  const std::int64_t first = begin + blockIdx.x * kValuesPerBlock;
  const std::int64_t end = min(first + kValuesPerBlock, begin + values);
  double signal = 0;
  double noise = 0;
  for (std::int64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const double x = native.value(native.offset(i / native.dim) + i % native.dim);
    signal += x * x;
    noise += errors[i] * errors[i];
  }
  signal = block_sum(signal);
  noise = block_sum(noise);
  if (threadIdx.x == 0) energies[blockIdx.y * gridDim.x + blockIdx.x] = {signal, noise};
}

/// errors read^T for the matrix of each head.
DeviceBuffer<double> mapped_back(const Context& context, DeviceBuffer<double> errors, const HeldRows& rows,
                                 const Rotation& read) {
  const std::int64_t dim = rows.dim();
  const std::int64_t batch = read.count() == 1 ? 1 : rows.kv_heads();
  DeviceBuffer<double> native(context, errors.size());
  gemm(context,
       {.m = static_cast<std::int64_t>(errors.size()) / dim / batch,
        .n = dim,
        .k = dim,
        .b = Transpose::kYes,
        .batch = batch},
       errors.data(), read.matrix(0, Precision::kExact), native.data());
  return native;
}

/// One side, tokens [begin, end): of each head. The rows of a step are few enough to rotate and decode at once.
/// read: null if the transform keeps lengths.
std::vector<Energies> energies_of(const Context& context, const HeldRows& rows, const Rotation& write,
                                  const Rotation* read, const std::optional<HistoryCodec>& codec, Precision precision,
                                  std::int64_t begin, std::int64_t end) {
  std::vector<Energies> sums(static_cast<std::size_t>(rows.kv_heads()));
  const std::int64_t step = std::max<std::int64_t>(kValuesAtATime / (std::int64_t{rows.kv_heads()} * rows.dim()), 1);
  for (std::int64_t first = begin; first < end; first += step) {
    const Part part{0, rows.kv_heads(), first, std::min(step, end - first)};
    DeviceBuffer<double> errors = rows.rotated(context, part, write, Precision::kExact);
    RowsView history = rows.stored(part);
    DeviceBuffer<float> decoded(context, codec ? rows.size(part) : 0);
    if (codec && rows.has_history()) {
      history = rows.history(part);
    } else if (codec) {
      quantize_rows(context, history, {&*codec, 1}, precision, {.decoded = decoded.data()});
      history = dense_rows(decoded.data(), history.count(), history.dim);
    }
    subtract_history<<<blocks_for(errors.size()), kThreads, 0, context.stream()>>>(errors.data(), history);
    OSCAR_CUDA_LAUNCHED("subtract_history");
    if (read != nullptr) errors = mapped_back(context, std::move(errors), rows, *read);
    const std::size_t blocks = (rows.size(part) / sums.size() + kValuesPerBlock - 1) / kValuesPerBlock;
    DeviceBuffer<Energies> parts(context, blocks * sums.size());
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(sums.size()));
    add_energies<<<grid, kThreads, 0, context.stream()>>>(errors.data(), rows.native(part), parts.data());
    OSCAR_CUDA_LAUNCHED("add_energies");
    const std::vector<Energies> found = parts.to_host(context);
    for (std::size_t i = 0; i < found.size(); ++i) {
      sums[i / blocks].signal += found[i].signal;
      sums[i / blocks].noise += found[i].noise;
    }
  }
  return sums;
}

}  // namespace

std::vector<RowErrors> row_errors(const Context& context, const HeldData& held, const HistoryCodecs& codecs,
                                  Windows windows) {
  const std::int64_t begin = windows.sink;
  const std::int64_t end = held.k.tokens() - windows.recent;
  const auto of_side = [&](const HeldRows& rows, const Rotation& write, const Rotation& read, bool keeps_lengths,
                           const std::optional<HistoryCodec>& codec) {
    return energies_of(context, rows, write, keeps_lengths ? nullptr : &read, codec, held.precision, begin, end);
  };
  const auto key = of_side(held.k, held.key_write, held.query_read, held.key_keeps_lengths, codecs.key);
  const auto value = of_side(held.v, held.value_write, held.value_read, held.value_keeps_lengths, codecs.value);
  std::vector<RowErrors> errors;
  for (std::size_t h = 0; h < key.size(); ++h) {
    errors.push_back({key[h].signal, key[h].noise, value[h].signal, value[h].noise});
  }
  return errors;
}

}  // namespace oscar::cuda
