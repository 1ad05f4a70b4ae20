// SPDX-License-Identifier: MIT
// Mixed-precision attention, written to be read. Key j and value j are read as stored if the query's windows hold j,
// else as the history has them.
//
// A block of threads serves neighbouring rows of one KV head, 16 a warp, a row being one query head at one position.
// It goes through the keys in tiles. A tile is brought to shared memory once for all rows, as stored, decoded, or one
// after the other where some rows need this and some that; in each reading a pair of row and key counts if it is the
// row's reading of that key, so every key that a row sees counts exactly once. Softmax is kept up to date:
//   m' = max(m, s_j)   sum' = sum e^(m - m') + sum_j e^(s_j - m')   o' = o e^(m - m') + sum_j e^(s_j - m') v_j
//
// Tensor cores multiply. Each number is the sum of two that they take, and the product of both low ones is left out.
// Queries and keys, whose scores may be large, are two float16 numbers beside the power of two above the largest of
// their row: 2^-23 of that is lost. Weights and values are two of bfloat16 and lose 2^-17 of each.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.hpp"
#include "kernels/cuda/cache_format.hpp"
#include "kernels/cuda/mixed_attention.hpp"
#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {
namespace {

constexpr int kWarps = 4, kWarpRows = 16, kBlockRows = kWarps * kWarpRows;
constexpr int kTile = 32;  // keys
constexpr int kLargestHead = 256;

/// Two neighbouring numbers, each as the sum of a high and a low one of 16 bits.
struct Halves {
  unsigned high, low;
};
template <Half kType>
__device__ Halves halves_of(float x, float y) {
  if constexpr (kType == Half::kBfloat16) {
    const unsigned high = pack_bf16(x, y);
    return {high, pack_bf16(x - low_bf16(high), y - high_bf16(high))};
  } else {
    const __half2 high = __floats2half2_rn(x, y);
    const float2 rounded = __half22float2(high);
    return {*reinterpret_cast<const unsigned*>(&high), pack_f16(x - rounded.x, y - rounded.y)};
  }
}

/// c (16, 8) += a (16, 16) b (16, 8), as mma() has them.
template <Half kType>
__device__ void multiply(float (&c)[4], const Halves (&a)[4], Halves b0, Halves b1) {
  mma<kType>(c, a[0].low, a[1].low, a[2].low, a[3].low, b0.high, b1.high);
  mma<kType>(c, a[0].high, a[1].high, a[2].high, a[3].high, b0.low, b1.low);
  mma<kType>(c, a[0].high, a[1].high, a[2].high, a[3].high, b0.high, b1.high);
}

/// The power of two by which numbers up to `largest` are divided, so that float16 holds them best.
__device__ float unit_of(float largest) {
  constexpr int kLowest = -100;  // the inverse is a number
  int exponent = 0;
  frexpf(largest, &exponent);
  return ldexpf(1, max(exponent, kLowest));
}

/// Channels of keys and of values in a block's tiles. Rows are padded so that eight of them lie in different banks.
template <int kKeys, int kValues>
struct Shape {
  static constexpr int kKeyChannels = kKeys, kValueChannels = kValues;
  static constexpr int kBytes = 4 * kTile * (kKeys + 8 + kValues + 8) + 4 * kTile;
};

/// (kTile, kChannels) of 16-bit numbers in shared memory: all high halves, then all low ones.
template <Half kType, int kChannels>
class Tile {
 public:
  static constexpr int kStride = kChannels + 8, kWords = kTile * kStride / 2;

  __device__ explicit Tile(unsigned* words)
      : words_(words), address_(static_cast<unsigned>(__cvta_generic_to_shared(words))) {}

  /// Rows [first, first + kTile) of one KV head from channel `begin` on: zeros behind the last channel and the last
  /// key. units (kTile): what each row was divided by; null: nothing.
  __device__ void load(const RowsView& rows, int head, std::int64_t first, std::int64_t keys, int begin,
                       float* units) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    for (int t = static_cast<int>(threadIdx.x) / kWarp; t < kTile; t += kWarps) {
      const std::int64_t row = (head * keys + first + t) * rows.dim + begin;
      const int end = first + t < keys ? rows.dim - begin : 0;
      float x[kChannels / kWarp], largest = 0;
#pragma unroll
      for (int n = 0; n < kChannels / kWarp; ++n) {
        const int channel = n / 2 * 2 * kWarp + 2 * lane + n % 2;
        x[n] = channel < end ? rows.value(row + channel) : 0.0F;
        largest = fmaxf(largest, fabsf(x[n]));
      }
      float inverse = 1;
      if (units != nullptr) {
        const float unit = unit_of(warp_max(largest));
        inverse = 1 / unit;
        if (lane == 0) units[t] = unit;
      }
#pragma unroll
      for (int n = 0; n < kChannels / kWarp; n += 2) {
        const Halves halves = halves_of<kType>(x[n] * inverse, x[n + 1] * inverse);
        unsigned* const word = words_ + t * kStride / 2 + n / 2 * kWarp + lane;
        word[0] = halves.high;
        word[kWords] = halves.low;
      }
    }
  }

  /// For 16 keys and 16 channels the second factors of four products: of keys, b0 and b1 of the first and of the last
  /// eight keys; of values, which are transposed, of the first and of the last eight channels.
  template <bool kTransposed>
  __device__ void get(int key, int channel, Halves (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, second = lane / 8 % 2 * 8, last = lane / 16 * 8;
    const int row = key + lane % 8 + (kTransposed ? second : last), column = channel + (kTransposed ? last : second);
    const unsigned from = address_ + 2 * static_cast<unsigned>(row * kStride + column);
    unsigned high[4], low[4];
    load_matrices<kTransposed>(from, high);
    load_matrices<kTransposed>(from + 4 * kWords, low);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = {high[i], low[i]};
  }

 private:
  unsigned* words_;
  unsigned address_;
};

/// The rows of this block, and this lane's share of them: two rows, eight apart. blockIdx: x the rows, y the KV head,
/// z the channels of the output.
struct Work {
  int head, lane, first_of_warp;
  std::int64_t rows_of_head, first_row, last_row;

  __device__ explicit Work(const CacheQueries& queries)
      : head(static_cast<int>(blockIdx.y)),
        lane(static_cast<int>(threadIdx.x) % kWarp),
        first_of_warp(static_cast<int>(threadIdx.x) / kWarp * kWarpRows),
        rows_of_head(queries.count * queries.g),
        // Later rows see more keys: they go first, so that no block starts long after the others.
        first_row(std::int64_t{gridDim.x - 1 - blockIdx.x} * kBlockRows),
        last_row(min(first_row + kBlockRows, rows_of_head) - 1) {}

  /// The lane's first or second row.
  [[nodiscard]] __device__ std::int64_t row(int r) const { return first_row + first_of_warp + lane / 4 + 8 * r; }
};

/// What mma() gives of a product with the warp's rows lies so in a lane: numbers 0 and 1 in columns 2 (lane % 4) and
/// the next one of its first row, 2 and 3 of its second.
template <class S>
struct RowState {
  Halves query[S::kKeyChannels / 16][4];
  std::int64_t position[2];  // -1: no such row, it sees nothing
  float scale[2];            // products of the query and a key beside its unit -> scores
  float highest[2];
  float sum[2];  // this lane's keys only
  float out[S::kValueChannels / 8][4];
};

/// A sink counts as a key without a value that has been seen before all others.
template <class S>
__device__ void begin_rows(const Work& work, const CacheQueries& queries, const float* sinks, RowState<S>& rows) {
  const int dim = queries.rows.dim, column = work.lane % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const std::int64_t row = work.row(r), first = (work.head * work.rows_of_head + row) * dim;
    const int end = row <= work.last_row ? dim : 0;
    const auto value = [&](int channel) { return channel < end ? queries.rows.value(first + channel) : 0.0F; };
    float largest = 0;
    for (int i = column; i < dim; i += 4) largest = fmaxf(largest, fabsf(value(i)));
    for (int step = 1; step < 4; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, step));
    const float unit = unit_of(largest), inverse = 1 / unit;
#pragma unroll
    for (int step = 0; step < S::kKeyChannels / 16; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = 16 * step + 8 * half + 2 * column;
        rows.query[step][2 * half + r] =
            halves_of<Half::kFloat16>(value(channel) * inverse, value(channel + 1) * inverse);
      }
    }
    rows.position[r] = end > 0 ? queries.positions[row / queries.g] : -1;
    rows.scale[r] = unit / sqrtf(static_cast<float>(dim));
    rows.highest[r] = sinks != nullptr ? sinks[work.head * queries.g + row % queries.g] : -INFINITY;
    rows.sum[r] = sinks != nullptr && column == 0 ? 1.0F : 0.0F;
  }
#pragma unroll
  for (auto& numbers : rows.out) {
    for (float& number : numbers) number = 0;
  }
}

using Scores = float[kTile / 8][4];

/// Products of the warp's queries with the keys of a tile.
template <class S, class KeyTile>
__device__ void dot_products(const RowState<S>& rows, const KeyTile& keys, Scores& scores) {
#pragma unroll
  for (auto& numbers : scores) {
    for (float& number : numbers) number = 0;
  }
#pragma unroll
  for (int step = 0; step < S::kKeyChannels / 16; ++step) {
#pragma unroll
    for (int n = 0; n < kTile / 8; n += 2) {
      Halves b[4];
      keys.template get<false>(8 * n, 16 * step, b);
      multiply<Half::kFloat16>(scores[n], rows.query[step], b[0], b[1]);
      multiply<Half::kFloat16>(scores[n + 1], rows.query[step], b[2], b[3]);
    }
  }
}

/// Products -> scores of the pairs that count in this reading of the tile, -infinity for the others. units: of keys.
template <class S>
__device__ void mask_scores(const RowState<S>& rows, std::int64_t first, const float* units, bool decoded,
                            const MixedCache& cache, Scores& scores) {
  const float cap = cache.scores.soft_cap;
  const std::int64_t reach = cache.scores.reach;
#pragma unroll
  for (int n = 0; n < kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = 8 * n + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
      const std::int64_t key = first + t, position = rows.position[i / 2];
      const bool counts = key <= position && (reach == 0 || position - key < reach) &&
                          in_window(key, position, cache.windows) != decoded;
      const float score = scores[n][i] * rows.scale[i / 2] * units[t];
      scores[n][i] = !counts ? -INFINITY : cap > 0 ? cap * tanhf(score / cap) : score;
    }
  }
}

/// Scores -> weights e^(score - highest so far); what was summed with the old maximum is scaled to the new one.
template <class S>
__device__ void update_softmax(RowState<S>& rows, Scores& scores) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float highest = rows.highest[r];
#pragma unroll
    for (const auto& numbers : scores) highest = fmaxf(highest, fmaxf(numbers[2 * r], numbers[2 * r + 1]));
    for (int step = 1; step < 4; step *= 2) highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, step));
    const float correction = highest == -INFINITY ? 1.0F : expf(rows.highest[r] - highest);
    rows.highest[r] = highest;
    rows.sum[r] *= correction;
#pragma unroll
    for (auto& numbers : scores) {
#pragma unroll
      for (int i = 2 * r; i < 2 * r + 2; ++i) {
        numbers[i] = highest == -INFINITY ? 0.0F : expf(numbers[i] - highest);
        rows.sum[r] += numbers[i];
      }
    }
#pragma unroll
    for (auto& numbers : rows.out) numbers[2 * r] *= correction, numbers[2 * r + 1] *= correction;
  }
}

/// out += weights values.
template <class S, class ValueTile>
__device__ void add_values(RowState<S>& rows, const Scores& weights, const ValueTile& values) {
#pragma unroll
  for (int step = 0; step < kTile / 16; ++step) {
    const float(&x)[4] = weights[2 * step], (&y)[4] = weights[2 * step + 1];
    const Halves a[4] = {halves_of<Half::kBfloat16>(x[0], x[1]), halves_of<Half::kBfloat16>(x[2], x[3]),
                         halves_of<Half::kBfloat16>(y[0], y[1]), halves_of<Half::kBfloat16>(y[2], y[3])};
#pragma unroll
    for (int n = 0; n < S::kValueChannels / 8; n += 2) {
      Halves b[4];
      values.template get<true>(16 * step, 8 * n, b);
      multiply<Half::kBfloat16>(rows.out[n], a, b[0], b[1]);
      multiply<Half::kBfloat16>(rows.out[n + 1], a, b[2], b[3]);
    }
  }
}

/// out (queries, KV heads, g, dim) = what the rows have summed, divided by the sum of their weights.
template <class S>
__device__ void store_rows(const Work& work, const RowState<S>& rows, int g, int kv_heads, int dim, bool round,
                           float* out) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float sum = rows.sum[r];
    for (int step = 1; step < 4; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (rows.position[r] < 0) continue;
    const std::int64_t row = work.row(r);  // = query * g + head among the g
    const std::int64_t out_row = (row / g * kv_heads + work.head) * g + row % g;
#pragma unroll
    for (int n = 0; n < S::kValueChannels / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int channel = static_cast<int>(blockIdx.z) * S::kValueChannels + 8 * n + 2 * (work.lane % 4) + i;
        if (channel >= dim) continue;
        const float value = rows.out[n][2 * r + i] / sum;
        out[out_row * dim + channel] = round ? nearest_bf16(value) : value;
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    mixed_attention_rows(CacheQueries queries, MixedCache cache, bool round_outputs, float* out) {
  extern __shared__ uint4 shared[];  // the tiles of keys and values, and the units of keys
  using KeyTile = Tile<Half::kFloat16, S::kKeyChannels>;
  using ValueTile = Tile<Half::kBfloat16, S::kValueChannels>;
  unsigned* const words = reinterpret_cast<unsigned*>(shared);
  const KeyTile key_tile(words);
  const ValueTile value_tile(words + 2 * KeyTile::kWords);
  float* const units = reinterpret_cast<float*>(words + 2 * (KeyTile::kWords + ValueTile::kWords));
  const Work work(queries);
  RowState<S> rows;
  begin_rows(work, queries, cache.scores.sinks, rows);

  const std::int64_t lowest = queries.positions[work.first_row / queries.g];
  const std::int64_t highest = queries.positions[work.last_row / queries.g];
  const std::int64_t seen = cache.scores.reach > 0 ? max(lowest - cache.scores.reach + 1, std::int64_t{0}) : 0;
  for (std::int64_t first = seen / kTile * kTile; first <= highest; first += kTile) {
    const TileReadings needed = tile_readings(first, min(first + kTile - 1, highest), lowest, highest, cache.windows);
    for (int reading = 0; reading < 2; ++reading) {
      const bool decoded = reading == 1;
      if (!(decoded ? needed.decoded : needed.stored)) continue;
      __syncthreads();  // nobody reads the last tile any more
      key_tile.load(decoded ? cache.key.decoded : cache.key.stored, work.head, first, cache.keys, 0, units);
      value_tile.load(decoded ? cache.value.decoded : cache.value.stored, work.head, first, cache.keys,
                      static_cast<int>(blockIdx.z) * S::kValueChannels, nullptr);
      __syncthreads();
      Scores scores;
      dot_products(rows, key_tile, scores);
      mask_scores(rows, first, units, decoded, cache, scores);
      update_softmax(rows, scores);
      add_values(rows, scores, value_tile);
    }
  }
  store_rows(work, rows, queries.g, cache.kv_heads, cache.value.stored.dim, round_outputs, out);
}

/// A kernel, its shared memory, and the output channels of a block.
struct Choice {
  void (*kernel)(CacheQueries, MixedCache, bool, float*);
  int bytes, channels;
};
template <class S>
Choice choice() {
  static_assert(S::kBytes <= 99 << 10);  // compute capability 8.6 and 8.9
  return {mixed_attention_rows<S>, S::kBytes, S::kValueChannels};
}
Choice choose(int key_dim, int value_dim) {
  if (std::max(key_dim, value_dim) <= 64) return choice<Shape<64, 64>>();
  return key_dim <= 128 ? choice<Shape<128, 128>>() : choice<Shape<256, 128>>();
}

void check_dim(int dim) {
  if (dim <= kLargestHead) return;
  throw UsageError("heads of " + std::to_string(dim) + " channels are larger than the GPU's attention takes",
                   "--device", "use --device cpu");
}

}  // namespace

void mixed_attention(const Context& context, const CacheQueries& queries, const MixedCache& cache, bool round_outputs,
                     float* out) {
  const int value_dim = cache.value.stored.dim;
  check_dim(std::max(cache.key.stored.dim, value_dim));
  const std::int64_t rows = queries.count * queries.g;
  if (rows == 0) return;
  const auto [kernel, bytes, channels] = choose(cache.key.stored.dim, value_dim);
  OSCAR_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  const dim3 grid(static_cast<unsigned>((rows + kBlockRows - 1) / kBlockRows), static_cast<unsigned>(cache.kv_heads),
                  static_cast<unsigned>((value_dim + channels - 1) / channels));
  kernel<<<grid, kWarps * kWarp, static_cast<std::size_t>(bytes), context.stream()>>>(queries, cache, round_outputs,
                                                                                      out);
  OSCAR_CUDA_LAUNCHED("mixed_attention_rows");
}

}  // namespace oscar::cuda
