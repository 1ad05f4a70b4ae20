// SPDX-License-Identifier: MIT
// Mixed-precision attention, written to be read. Key j and value j are read as stored if the query's windows hold j,
// else as the history has them.
//
// A block of threads serves neighbouring rows of one KV head, a row being one query head at one position. It goes
// through the keys in tiles of one key a lane. A tile is brought to shared memory once for all rows, as stored,
// decoded, or one after the other where some rows need this and some that; in each reading a pair of row and key counts
// if it is the row's reading of that key, so every key that a row sees counts exactly once. Softmax is kept up to date:
//   m' = max(m, s_j)   sum' = sum e^(m - m') + sum_j e^(s_j - m')   o' = o e^(m - m') + sum_j e^(s_j - m') v_j
#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.hpp"
#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/mixed_attention.hpp"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTile = kWarp;  // keys
constexpr int kLargestHead = 256;

/// Output channels that a lane has of each row, and rows of a warp, which share what is read of keys and values.
template <int kNumSlots, int kNumRows>
struct Shape {
  static constexpr int kSlots = kNumSlots, kRows = kNumRows;
  static constexpr int kBlockRows = kWarps * kRows;
};

/// A tile row's channels in shared memory are padded to whole float4s; an odd stride keeps the lanes' keys in different
/// banks.
__host__ __device__ constexpr int padded(int dim) { return (dim + 3) / 4 * 4; }
__host__ __device__ constexpr int key_stride(int dim) { return padded(dim) + 1; }
/// Shared memory of a block: queries and weights of its rows, and a tile of keys and of values.
constexpr int shared_bytes(int block_rows, int slots, int dim) {
  return 4 * (block_rows * (padded(dim) + kTile) + kTile * (slots * kWarp + key_stride(dim)));
}

/// Rows [first, first + kTile) of one KV head, decoded or as stored, each `width` floats wide: zeros behind a row's
/// channels and behind the last key.
__device__ void load_tile(const CacheSide& side, int head, std::int64_t first, std::int64_t keys, bool decoded,
                          int width, int stride, float* tile) {
  const RowsView& rows = decoded ? side.decoded : side.stored;
  const int dim = rows.dim;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int t = static_cast<int>(threadIdx.x) / kWarp; t < kTile; t += kWarps) {
    float* const out = tile + t * stride;
    const bool exists = first + t < keys;
    const std::int64_t row = head * keys + first + t;
    for (int i = lane; i < width; i += kWarp) out[i] = exists && i < dim ? rows.value(row * dim + i) : 0.0F;
  }
}

/// The rows of a warp: lane t works on key t of a tile, and on output channels t, t + 32, …
template <class S>
struct RowState {
  std::int64_t position[S::kRows];  // -1: no such row, it sees nothing
  float highest[S::kRows];
  float sum[S::kRows];  // this lane's keys only
  float out[S::kRows][S::kSlots];
};

/// Scores of the warp's rows with this lane's key, not yet divided by sqrt(d).
template <int kRows>
__device__ void dot_products(const float* q, const float* key, int dim, float (&scores)[kRows]) {
  for (float& score : scores) score = 0.0F;
  for (int i = 0; i < dim; i += 4) {
    const float k[4] = {key[i], key[i + 1], key[i + 2], key[i + 3]};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float4 x = *reinterpret_cast<const float4*>(q + r * dim + i);
      scores[r] += x.x * k[0] + x.y * k[1] + x.z * k[2] + x.w * k[3];
    }
  }
}

/// Scores -> weights e^(score - highest so far); what was summed with the old maximum is scaled to the new one.
/// Keys that do not count have the score -infinity.
template <class S>
__device__ void update_softmax(RowState<S>& rows, float (&scores)[S::kRows]) {
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const float highest = fmaxf(rows.highest[r], warp_max(scores[r]));
    const float correction = highest == -INFINITY ? 1.0F : expf(rows.highest[r] - highest);
    scores[r] = highest == -INFINITY ? 0.0F : expf(scores[r] - highest);
    rows.highest[r] = highest;
    rows.sum[r] = rows.sum[r] * correction + scores[r];
#pragma unroll
    for (int s = 0; s < S::kSlots; ++s) rows.out[r][s] *= correction;
  }
}

/// out += weights values. values: (kTile, 32 * kSlots); shared: (rows, kTile), of this warp.
template <class S>
__device__ void add_values(RowState<S>& rows, const float (&weights)[S::kRows], const float* values, int lane,
                           float* shared) {
  __syncwarp();  // nobody reads the last tile's weights any more
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) shared[r * kTile + lane] = weights[r];
  __syncwarp();
  for (int first = 0; first < kTile; first += 4) {
    float v[4][S::kSlots];
#pragma unroll
    for (int n = 0; n < 4 * S::kSlots; ++n) {
      v[n / S::kSlots][n % S::kSlots] = values[(first * S::kSlots + n) * kWarp + lane];
    }
#pragma unroll
    for (int r = 0; r < S::kRows; ++r) {
      const float4 own = *reinterpret_cast<const float4*>(shared + r * kTile + first);
#pragma unroll
      for (int s = 0; s < S::kSlots; ++s) {
        rows.out[r][s] += own.x * v[0][s];
        rows.out[r][s] += own.y * v[1][s];
        rows.out[r][s] += own.z * v[2][s];
        rows.out[r][s] += own.w * v[3][s];
      }
    }
  }
}

/// The rows of this block, and this thread's share of them. blockIdx: x the rows, y the KV head.
template <class S>
struct Work {
  int head, lane, first_of_warp;
  std::int64_t rows_of_head, first_row, last_row;

  __device__ explicit Work(const CacheQueries& queries)
      : head(static_cast<int>(blockIdx.y)),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        first_of_warp(static_cast<int>(threadIdx.x) / kWarp * S::kRows),
        rows_of_head(queries.count * queries.g),
        // Later rows see more keys: they go first, so that no block starts long after the others.
        first_row(std::int64_t{gridDim.x - 1 - blockIdx.x} * S::kBlockRows),
        last_row(min(first_row + S::kBlockRows, rows_of_head) - 1) {}
};

/// The warp's queries into q_tile (kBlockRows, width), zeros behind their channels and for rows that are not there.
template <class S>
__device__ void load_queries(const Work<S>& work, const CacheQueries& queries, int width, float* q_tile) {
  const int dim = queries.rows.dim;
  for (int r = work.first_of_warp; r < work.first_of_warp + S::kRows; ++r) {
    const std::int64_t row = work.first_row + r;
    for (int i = work.lane; i < width; i += kWarp) {
      const bool exists = row <= work.last_row && i < dim;
      q_tile[r * width + i] = exists ? queries.rows.value((work.head * work.rows_of_head + row) * dim + i) : 0.0F;
    }
  }
}

/// A sink counts as a key without a value that has been seen before all others.
template <class S>
__device__ void begin_rows(const Work<S>& work, const CacheQueries& queries, const float* sinks, RowState<S>& rows) {
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const std::int64_t row = work.first_row + work.first_of_warp + r;
    rows.position[r] = row <= work.last_row ? queries.positions[row / queries.g] : -1;
    rows.highest[r] = sinks != nullptr ? sinks[work.head * queries.g + row % queries.g] : -INFINITY;
    rows.sum[r] = sinks != nullptr && work.lane == 0 ? 1.0F : 0.0F;
#pragma unroll
    for (int s = 0; s < S::kSlots; ++s) rows.out[r][s] = 0.0F;
  }
}

/// Dot products -> scores of the pairs that count in this reading of the tile; -infinity for the others.
template <class S>
__device__ void mask_scores(const RowState<S>& rows, std::int64_t key, bool decoded, const MixedCache& cache,
                            float scale, float (&scores)[S::kRows]) {
  const float cap = cache.scores.soft_cap;
  const std::int64_t reach = cache.scores.reach;
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const std::int64_t position = rows.position[r];
    const bool counts =
        key <= position && (reach == 0 || position - key < reach) && in_window(key, position, cache.windows) != decoded;
    const float score = scores[r] * scale;
    scores[r] = !counts ? -INFINITY : cap > 0 ? cap * tanhf(score / cap) : score;
  }
}

/// out (queries, KV heads, g, dim) = what the rows have summed, divided by the sum of their weights.
template <class S>
__device__ void store_rows(const Work<S>& work, const RowState<S>& rows, int g, int kv_heads, int dim, bool round,
                           float* out) {
#pragma unroll
  for (int r = 0; r < S::kRows; ++r) {
    const float sum = warp_sum(rows.sum[r]);
    if (rows.position[r] < 0) continue;
    const std::int64_t row = work.first_row + work.first_of_warp + r;  // = query * g + head among the g
    const std::int64_t out_row = (row / g * kv_heads + work.head) * g + row % g;
#pragma unroll
    for (int s = 0; s < S::kSlots; ++s) {
      const int channel = work.lane + s * kWarp;
      if (channel >= dim) continue;
      const float value = rows.out[r][s] / sum;
      out[out_row * dim + channel] = round ? nearest_bf16(value) : value;
    }
  }
}

template <class S>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    mixed_attention_rows(CacheQueries queries, MixedCache cache, bool round_outputs, float* out) {
  extern __shared__ float4 shared[];
  const int width = padded(cache.key.stored.dim), stride = key_stride(cache.key.stored.dim);
  constexpr int kValueWidth = S::kSlots * kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  float* const q_tile = reinterpret_cast<float*>(shared);         // (kBlockRows, width)
  float* const weight_tile = q_tile + S::kBlockRows * width;      // (kBlockRows, kTile)
  float* const value_tile = weight_tile + S::kBlockRows * kTile;  // (kTile, kValueWidth)
  float* const key_tile = value_tile + kTile * kValueWidth;       // (kTile, stride)
  const Work<S> work(queries);
  RowState<S> rows;
  load_queries(work, queries, width, q_tile);
  begin_rows(work, queries, cache.scores.sinks, rows);

  const std::int64_t lowest = queries.positions[work.first_row / queries.g];
  const std::int64_t highest = queries.positions[work.last_row / queries.g];
  const float scale = 1.0F / sqrtf(static_cast<float>(queries.rows.dim));
  for (std::int64_t first = 0; first <= highest; first += kTile) {
    const TileReadings needed = tile_readings(first, min(first + kTile - 1, highest), lowest, highest, cache.windows);
    for (int reading = 0; reading < 2; ++reading) {
      const bool decoded = reading == 1;
      if (!(decoded ? needed.decoded : needed.stored)) continue;
      __syncthreads();  // nobody reads the last tile any more
      load_tile(cache.key, work.head, first, cache.keys, decoded, width, stride, key_tile);
      load_tile(cache.value, work.head, first, cache.keys, decoded, kValueWidth, kValueWidth, value_tile);
      __syncthreads();
      float weights[S::kRows];
      dot_products(q_tile + work.first_of_warp * width, key_tile + work.lane * stride, width, weights);
      mask_scores(rows, first + work.lane, decoded, cache, scale, weights);
      update_softmax(rows, weights);
      add_values(rows, weights, value_tile, work.lane, weight_tile + warp * S::kRows * kTile);
    }
  }
  store_rows(work, rows, queries.g, cache.kv_heads, cache.value.stored.dim, round_outputs, out);
}

using Kernel = void (*)(CacheQueries, MixedCache, bool, float*);

/// A kernel, the output channels of a lane and the rows of a block.
struct Choice {
  Kernel kernel;
  int slots, block_rows;
};
template <class S>
Choice choice() {
  static_assert(shared_bytes(S::kBlockRows, S::kSlots, kWarp * S::kSlots) <=
                99 << 10);  // compute capability 8.6 and 8.9
  return {mixed_attention_rows<S>, S::kSlots, S::kBlockRows};
}
/// dim: of keys or of values, whichever is larger. Large heads leave room for fewer rows.
Choice choose(int dim) {
  if (dim <= 64) return choice<Shape<2, 8>>();
  if (dim <= 96) return choice<Shape<3, 8>>();
  if (dim <= 128) return choice<Shape<4, 8>>();
  if (dim <= 192) return choice<Shape<6, 4>>();
  return choice<Shape<8, 2>>();
}

void check_dim(int dim) {
  if (dim <= kLargestHead) return;
  throw UsageError("heads of " + std::to_string(dim) + " channels are larger than the GPU's attention takes",
                   "--device", "use --device cpu");
}

}  // namespace

void mixed_attention(const Context& context, const CacheQueries& queries, const MixedCache& cache, bool round_outputs,
                     float* out) {
  check_dim(cache.key.stored.dim);
  check_dim(cache.value.stored.dim);
  const std::int64_t rows = queries.count * queries.g;
  if (rows == 0) return;
  const int dim = cache.key.stored.dim;
  const auto [kernel, slots, block_rows] = choose(std::max(dim, cache.value.stored.dim));
  const int bytes = shared_bytes(block_rows, slots, dim);
  OSCAR_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(static_cast<unsigned>((rows + block_rows - 1) / block_rows), static_cast<unsigned>(cache.kv_heads));
  kernel<<<grid, kWarps * kWarp, static_cast<std::size_t>(bytes), context.stream()>>>(queries, cache, round_outputs,
                                                                                      out);
  OSCAR_CUDA_LAUNCHED("mixed_attention_rows");
}

}  // namespace oscar::cuda
