// SPDX-License-Identifier: MIT
// Rows of all reads lie one after the other, so that one product turns them all. Then read by read, and in it block of
// queries by block: scores, their errors, what softmax makes of both, and what that weighs the keys' errors with.
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "base/check.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/device_buffer.hpp"
#include "kernels/cuda/held_key_reads.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/row_codec.hpp"

namespace oscar::cuda {
namespace {

/// Queries whose scores are made at a time: 8 MiB of them over 2048 keys, and no result depends on what else is held.
constexpr std::int64_t kBlock = 512;

__global__ void subtract(const float* from, std::int64_t count, float* values) {
  const std::int64_t i = task_index();
  if (i < count) values[i] -= from[i];
}

/// One block of threads a query. errors: of its scores; becomes p^ - p for keys of the history, 0 for all others.
__global__ void softmax_differences(const std::int64_t* positions, Windows windows, std::int64_t keys,
                                    const float* scores, float* errors, double* kl) {
  const std::int64_t position = positions[blockIdx.x];
  const float* s = scores + blockIdx.x * keys;
  float* e = errors + blockIdx.x * keys;
  const auto error = [&](std::int64_t j) { return in_window(j, position, windows) ? 0.0F : e[j]; };
  float highest = -FLT_MAX, highest_hat = -FLT_MAX;
  for (std::int64_t j = threadIdx.x; j <= position; j += kThreads) {
    highest = fmaxf(highest, s[j]);
    highest_hat = fmaxf(highest_hat, s[j] + error(j));
  }
  highest = block_max(highest);
  highest_hat = block_max(highest_hat);
  double sum = 0, sum_hat = 0, shift = 0;
  for (std::int64_t j = threadIdx.x; j <= position; j += kThreads) {
    const float weight = expf(s[j] - highest);
    sum += weight;
    sum_hat += expf(s[j] + error(j) - highest_hat);
    shift += double{weight} * error(j);
  }
  sum = block_sum(sum);
  sum_hat = block_sum(sum_hat);
  shift = block_sum(shift) / sum;
  const auto scale = static_cast<float>(1 / sum), scale_hat = static_cast<float>(1 / sum_hat);
  for (std::int64_t j = threadIdx.x; j < keys; j += kThreads) {
    const bool counts = j <= position && !in_window(j, position, windows);
    e[j] = counts ? expf(s[j] + e[j] - highest_hat) * scale_hat - expf(s[j] - highest) * scale : 0.0F;
  }
  if (threadIdx.x == 0) kl[blockIdx.x] = log(sum_hat) + highest_hat - log(sum) - highest - shift;
}

class CudaKeyReads : public HeldKeyReads {
 public:
  CudaKeyReads(Lanes& lanes, std::span<const KeyReads* const> reads, const RowCodec& codec, Windows windows)
      : lanes_(lanes), codec_(codec), windows_(windows), dim_(checked_head_dim(reads)) {
    std::vector<float> keys, queries;
    for (const KeyReads* each : reads) {
      reads_.push_back({num_keys_, num_queries_, static_cast<std::int64_t>(each->positions.size())});
      keys.insert(keys.end(), each->keys.begin(), each->keys.end());
      queries.insert(queries.end(), each->queries.begin(), each->queries.end());
      host_positions_.insert(host_positions_.end(), each->positions.begin(), each->positions.end());
      num_keys_ += static_cast<std::int64_t>(each->keys.size()) / dim_;
      num_queries_ += reads_.back().queries;
    }
    lanes_.run([&](const Context& context) {
      keys_ = {context, std::span<const float>(keys)};
      queries_ = {context, std::span<const float>(queries)};
      positions_ = {context, std::span<const std::int64_t>(host_positions_)};
    });
  }

  [[nodiscard]] KlGradient gradient(std::span<const float> rotation) override {
    OSCAR_CHECK(rotation.size() == square());
    return lanes_.run([&](const Context& context) { return gradient(context, rotation); });
  }

 private:
  struct Read {
    std::int64_t first_key, first_query, queries;
  };

  /// Rows, and what the blocks add up to.
  struct Turned {
    DeviceBuffer<float> keys, errors, queries;
    DeviceBuffer<float> weighted;  // (queries, d): the keys' errors, by the differences of their weights
    DeviceBuffer<double> kl;       // by query
  };

  [[nodiscard]] std::size_t square() const { return static_cast<std::size_t>(dim_) * static_cast<std::size_t>(dim_); }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(dim_)); }

  [[nodiscard]] KlGradient gradient(const Context& context, std::span<const float> rotation) const {
    Turned turned = turn(context, rotation);
    for (const Read& read : reads_) {
      for (std::int64_t first = 0; first < read.queries; first += kBlock) {
        add_block(context, read, first, std::min(kBlock, read.queries - first), turned);
      }
    }
    DeviceBuffer<float> gradient(context, square());
    multiply_transposed(context, 1, num_queries_, dim_, turned.queries.data(), turned.weighted.data(), gradient.data());
    const std::vector<float> values = gradient.to_host(context);
    const std::vector<double> kl = turned.kl.to_host(context);
    return {strand_sum(kl.size(), [&](std::size_t i) { return kl[i]; }), {values.begin(), values.end()}};
  }

  [[nodiscard]] Turned turn(const Context& context, std::span<const float> rotation) const {
    const auto queries = static_cast<std::size_t>(num_queries_);
    Turned turned{{context, keys_.size()},
                  {context, keys_.size()},
                  {context, queries_.size()},
                  {context, queries_.size()},
                  {context, queries}};
    const DeviceBuffer<float> by(context, rotation);
    const HistoryCodec codec(codec_);
    gemm(context, {.m = num_keys_, .n = dim_, .k = dim_}, keys_.data(), by.data(), turned.keys.data());
    gemm(context, {.m = num_queries_, .n = dim_, .k = dim_}, queries_.data(), by.data(), turned.queries.data());
    quantize_rows(context, dense_rows(turned.keys.data(), num_keys_, static_cast<int>(dim_)), {&codec, 1},
                  Precision::kExact, {.decoded = turned.errors.data()});
    subtract<<<blocks_for(keys_.size()), kThreads, 0, context.stream()>>>(
        turned.keys.data(), static_cast<std::int64_t>(keys_.size()), turned.errors.data());
    OSCAR_CUDA_LAUNCHED("subtract");
    return turned;
  }

  void add_block(const Context& context, const Read& read, std::int64_t first, std::int64_t queries,
                 Turned& turned) const {
    const std::int64_t query = read.first_query + first;
    const std::int64_t keys = host_positions_[static_cast<std::size_t>(query + queries - 1)] + 1;
    DeviceBuffer<float> scores(context, static_cast<std::size_t>(queries * keys));
    DeviceBuffer<float> errors(context, scores.size());
    const Gemm product{.m = queries, .n = keys, .k = dim_, .b = Transpose::kYes, .alpha = scale()};
    const float* const rows = turned.queries.data() + query * dim_;
    const float* const key_errors = turned.errors.data() + read.first_key * dim_;
    gemm(context, product, rows, turned.keys.data() + read.first_key * dim_, scores.data());
    gemm(context, product, rows, key_errors, errors.data());
    softmax_differences<<<static_cast<unsigned>(queries), kThreads, 0, context.stream()>>>(
        positions_.data() + query, windows_, keys, scores.data(), errors.data(), turned.kl.data() + query);
    OSCAR_CUDA_LAUNCHED("softmax_differences");
    gemm(context, {.m = queries, .n = dim_, .k = keys, .alpha = scale()}, errors.data(), key_errors,
         turned.weighted.data() + query * dim_);
  }

  Lanes& lanes_;
  RowCodec codec_;
  Windows windows_;
  std::int64_t dim_, num_keys_ = 0, num_queries_ = 0;
  std::vector<Read> reads_;
  std::vector<std::int64_t> host_positions_;  // of all queries
  DeviceBuffer<float> keys_, queries_;
  DeviceBuffer<std::int64_t> positions_;
};

}  // namespace

std::unique_ptr<HeldKeyReads> hold(Lanes& lanes, std::span<const KeyReads* const> reads, const RowCodec& codec,
                                   Windows windows) {
  return std::make_unique<CudaKeyReads>(lanes, reads, codec, windows);
}

}  // namespace oscar::cuda
