// SPDX-License-Identifier: MIT
// Mixed-precision attention, written to be read. Key j and value j are read as stored if the query's windows hold j,
// else as the history has them.
//
// A block of threads serves neighbouring rows of one KV head, 16 a warp, a row being one query head at one position.
// It goes through the keys in tiles. A tile is brought to shared memory once for all rows, as stored, decoded, or one
// after the other where some rows need this and some that, while the block works on the tile before; in each reading a
// pair of row and key counts if it is the row's reading of that key, so every key that a row sees counts exactly once.
// Softmax is kept up to date:
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
constexpr int kLargestHead = 256;
/// The number of keys is rounded up to a multiple of this, which the keys of a tile divide.
constexpr int kPaddedKeys = 32;

/// Where something is in shared memory.
__device__ unsigned address_of(const void* shared) { return static_cast<unsigned>(__cvta_generic_to_shared(shared)); }

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
    const unsigned high = pack_f16(x, y);
    const float2 rounded = __half22float2(*reinterpret_cast<const __half2*>(&high));
    return {high, pack_f16(x - rounded.x, y - rounded.y)};
  }
}

/// c (16, 8) += a (16, 16) b (16, 8), as mma() has them.
template <Half kType>
__device__ void multiply(float (&c)[4], const Halves (&a)[4], Halves b0, Halves b1) {
  mma<kType>(c, a[0].low, a[1].low, a[2].low, a[3].low, b0.high, b1.high);
  mma<kType>(c, a[0].high, a[1].high, a[2].high, a[3].high, b0.low, b1.low);
  mma<kType>(c, a[0].high, a[1].high, a[2].high, a[3].high, b0.high, b1.high);
}

/// The power of two by which numbers up to `largest` are divided, so that they are below 1. It and its inverse are
/// numbers.
__device__ float unit_of(float largest) { return ldexpf(1, 1 + min(max(ilogbf(largest), -100), 126)); }

/// Rows of one side of a cache as halves, (heads, keys, channels), zeros behind the last channel and the last key: of
/// each KV head as stored, and behind those, where that is not the same, as decoded.
struct HalvedView {
  std::uint16_t *high, *low;
  float* units;  // (heads, keys): what each row was divided by
  std::int64_t keys;
  int channels, heads_before_decoded;
};

/// A warp takes a row. blockIdx: x the keys, y the KV head, of which the first goes to `first_head`.
template <Half kType>
__global__ void halve_rows(RowsView rows, std::int64_t keys, HalvedView halved, int first_head) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const std::int64_t key = task_index() / kWarp, to = (first_head + blockIdx.y) * halved.keys + key;
  if (key >= halved.keys) return;
  const std::int64_t from = (blockIdx.y * keys + key) * rows.dim;
  const int end = key < keys ? rows.dim : 0;
  const auto value = [&](int channel) { return channel < end ? rows.value(from + channel) : 0.0F; };
  float unit = 1;
  if constexpr (kType == Half::kFloat16) {
    float largest = 0;
    for (int i = lane; i < end; i += kWarp) largest = fmaxf(largest, fabsf(value(i)));
    unit = unit_of(warp_max(largest));
  }
  if (lane == 0) halved.units[to] = unit;
  for (int i = 2 * lane; i < halved.channels; i += 2 * kWarp) {
    const Halves halves = halves_of<kType>(value(i) / unit, value(i + 1) / unit);
    *reinterpret_cast<unsigned*>(halved.high + to * halved.channels + i) = halves.high;
    *reinterpret_cast<unsigned*>(halved.low + to * halved.channels + i) = halves.low;
  }
}

template <Half kType>
class HalvedSide {
 public:
  HalvedSide(const Context& context, const CacheSide& side, int heads, std::int64_t keys, int channels)
      : view_{.keys = (keys + kPaddedKeys - 1) / kPaddedKeys * kPaddedKeys, .channels = channels} {
    const bool differ = side.decoded.values != side.stored.values;
    view_.heads_before_decoded = differ ? heads : 0;
    const auto rows = static_cast<std::size_t>((differ ? 2 : 1) * heads * view_.keys);
    high_ = DeviceBuffer<std::uint16_t>(context, rows * static_cast<std::size_t>(channels));
    low_ = DeviceBuffer<std::uint16_t>(context, high_.size());
    units_ = DeviceBuffer<float>(context, rows);
    view_.high = high_.data(), view_.low = low_.data(), view_.units = units_.data();
    const dim3 grid(blocks_for(static_cast<std::size_t>(view_.keys) * kWarp), static_cast<unsigned>(heads));
    halve_rows<kType><<<grid, kThreads, 0, context.stream()>>>(side.stored, keys, view_, 0);
    if (differ) halve_rows<kType><<<grid, kThreads, 0, context.stream()>>>(side.decoded, keys, view_, heads);
    OSCAR_CUDA_LAUNCHED("halve_rows");
  }
  [[nodiscard]] const HalvedView& view() const { return view_; }

 private:
  HalvedView view_;
  DeviceBuffer<std::uint16_t> high_, low_;
  DeviceBuffer<float> units_;
};

/// The keys of a tile, and the channels of keys and of values that a block takes.
template <int kKeys, int kOfKeys, int kOfValues>
struct Shape {
  static constexpr int kTile = kKeys, kKeyChannels = kOfKeys, kValueChannels = kOfValues;
};

/// (kTile, kChannels) of 16-bit numbers in shared memory: all high halves, then all low ones. Rows are padded so that
/// eight of them lie in different banks.
template <int kTile, int kChannels>
class Tile {
 public:
  static constexpr unsigned kStride = 2 * (kChannels + 8), kPlane = kTile * kStride, kBytes = 2 * kPlane;

  __device__ explicit Tile(unsigned address) : address_(address) {}

  /// Begins to copy rows [first, first + kTile) of a head from channel `begin` on.
  __device__ void copy(const HalvedView& rows, int head, std::int64_t first, int begin) const {
    constexpr int kPiece = 8, kPieces = kChannels / kPiece;
    const std::int64_t from = (head * rows.keys + first) * rows.channels + begin;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kTile * kPieces; i += kWarps * kWarp) {
      const int row = i / kPieces, piece = i % kPieces;
      const std::int64_t at = from + row * rows.channels + piece * kPiece;
      const unsigned to = address_ + row * kStride + piece * kPiece * 2;
      copy_async<16>(to, rows.high + at);
      copy_async<16>(to + kPlane, rows.low + at);
    }
  }

  /// For 16 keys and 16 channels the second factors of two products, b0 and b1 of each: of keys, of the first and of
  /// the last eight; of values, which are transposed, of the first and of the last eight channels.
  template <bool kTransposed>
  __device__ void get(int key, int channel, Halves (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, second = lane / 8 % 2 * 8, last = lane / 16 * 8;
    const int row = key + lane % 8 + (kTransposed ? second : last), column = channel + (kTransposed ? last : second);
    const unsigned from = address_ + row * kStride + 2 * column;
    unsigned high[4], low[4];
    load_matrices<kTransposed>(from, high);
    load_matrices<kTransposed>(from + kPlane, low);
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i] = {high[i], low[i]};
  }

 private:
  unsigned address_;
};

/// One reading of a tile by a block.
struct Reading {
  std::int64_t first;  // key
  bool decoded;
};

/// What a block has in shared memory of one reading.
template <class S>
struct TilePlace {
  using Keys = Tile<S::kTile, S::kKeyChannels>;
  using Values = Tile<S::kTile, S::kValueChannels>;
  static constexpr unsigned kUnits = Keys::kBytes + Values::kBytes, kBytes = kUnits + 4 * S::kTile;
  Keys keys;
  Values values;
  float* units;  // (kTile), of keys

  __device__ explicit TilePlace(unsigned char* shared)
      : keys(address_of(shared)),
        values(address_of(shared + Keys::kBytes)),
        units(reinterpret_cast<float*>(shared + kUnits)) {}

  __device__ void copy(const HalvedView& key, const HalvedView& value, int head, const Reading& reading) const {
    const int key_head = head + (reading.decoded ? key.heads_before_decoded : 0);
    keys.copy(key, key_head, reading.first, 0);
    values.copy(value, head + (reading.decoded ? value.heads_before_decoded : 0), reading.first,
                static_cast<int>(blockIdx.z) * S::kValueChannels);
    if (threadIdx.x >= S::kTile) return;
    copy_async<4>(address_of(units + threadIdx.x), key.units + key_head * key.keys + reading.first + threadIdx.x);
  }
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
}

template <class S>
using Scores = float[S::kTile / 8][4];

/// scores += products of the warp's queries with the keys of a tile.
template <class S>
__device__ void dot_products(const RowState<S>& rows, const Tile<S::kTile, S::kKeyChannels>& keys, Scores<S>& scores) {
#pragma unroll
  for (int step = 0; step < S::kKeyChannels / 16; ++step) {
#pragma unroll
    for (int n = 0; n < S::kTile / 8; n += 2) {
      Halves b[4];
      keys.template get<false>(8 * n, 16 * step, b);
      multiply<Half::kFloat16>(scores[n], rows.query[step], b[0], b[1]);
      multiply<Half::kFloat16>(scores[n + 1], rows.query[step], b[2], b[3]);
    }
  }
}

/// Products -> scores of the pairs that count in this reading of the tile, -infinity for the others.
template <class S>
__device__ void mask_scores(const RowState<S>& rows, const TilePlace<S>& place, const Reading& reading,
                            const MixedCache& cache, Scores<S>& scores) {
  const float cap = cache.scores.soft_cap;
  const std::int64_t reach = cache.scores.reach;
#pragma unroll
  for (int n = 0; n < S::kTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = 8 * n + 2 * static_cast<int>(threadIdx.x % 4) + i % 2;
      const std::int64_t key = reading.first + t, position = rows.position[i / 2];
      const bool counts = key <= position && (reach == 0 || position - key < reach) &&
                          in_window(key, position, cache.windows) != reading.decoded;
      const float score = scores[n][i] * rows.scale[i / 2] * place.units[t];
      scores[n][i] = !counts ? -INFINITY : cap > 0 ? cap * tanhf(score / cap) : score;
    }
  }
}

/// Scores -> weights e^(score - highest so far); what was summed with the old maximum is scaled to the new one.
template <class S>
__device__ void update_softmax(RowState<S>& rows, Scores<S>& scores) {
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
template <class S>
__device__ void add_values(RowState<S>& rows, const Scores<S>& weights,
                           const Tile<S::kTile, S::kValueChannels>& values) {
#pragma unroll
  for (int step = 0; step < S::kTile / 16; ++step) {
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

/// The readings that a block needs, in order.
template <class S>
struct Readings {
  std::int64_t lowest, highest;  // positions of its rows
  Windows windows;

  /// Moves to the next reading; false behind the last.
  __device__ bool advance(Reading& now) const {
    do {
      now.first += now.decoded ? S::kTile : 0;
      now.decoded = !now.decoded;
      if (now.first > highest) return false;
      const TileReadings needed =
          tile_readings(now.first, min(now.first + S::kTile - 1, highest), lowest, highest, windows);
      if (now.decoded ? needed.decoded : needed.stored) return true;
    } while (true);
  }
};

template <class S>
__global__ void __launch_bounds__(kWarps* kWarp, 2)
    mixed_attention_rows(CacheQueries queries, MixedCache cache, HalvedView key, HalvedView value, bool round_outputs,
                         float* out) {
  extern __shared__ uint4 shared[];  // two TilePlaces
  const auto place = [bytes = reinterpret_cast<unsigned char*>(shared)](int i) {
    return TilePlace<S>(bytes + i * TilePlace<S>::kBytes);
  };
  const Work work(queries);
  const Readings<S> readings{queries.positions[work.first_row / queries.g],
                             queries.positions[work.last_row / queries.g], cache.windows};
  const std::int64_t reach = cache.scores.reach;
  const std::int64_t seen = reach > 0 ? max(readings.lowest - reach + 1, std::int64_t{0}) : 0;
  Reading next{seen / S::kTile * S::kTile - S::kTile, true};
  bool more = readings.advance(next);
  if (more) place(0).copy(key, value, work.head, next);
  commit_copies();
  RowState<S> rows{};
  begin_rows(work, queries, cache.scores.sinks, rows);
  for (int i = 0; more; i = 1 - i) {
    const Reading now = next;
    more = readings.advance(next);
    if (more) place(1 - i).copy(key, value, work.head, next);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    Scores<S> scores{};
    dot_products(rows, place(i).keys, scores);
    mask_scores(rows, place(i), now, cache, scores);
    update_softmax(rows, scores);
    add_values(rows, scores, place(i).values);
    __syncthreads();  // nobody reads this tile any more
  }
  store_rows(work, rows, queries.g, cache.kv_heads, cache.value.stored.dim, round_outputs, out);
}

template <class S>
void attend_by(const Context& context, const CacheQueries& queries, const MixedCache& cache, bool round_outputs,
               float* out) {
  constexpr int kBytes = 2 * TilePlace<S>::kBytes;
  static_assert(kPaddedKeys % S::kTile == 0 && kBytes <= 99 << 10);  // compute capability 8.6 and 8.9
  const int value_blocks = (cache.value.stored.dim + S::kValueChannels - 1) / S::kValueChannels;
  const HalvedSide<Half::kFloat16> key(context, cache.key, cache.kv_heads, cache.keys, S::kKeyChannels);
  const HalvedSide<Half::kBfloat16> value(context, cache.value, cache.kv_heads, cache.keys,
                                          value_blocks * S::kValueChannels);
  const std::int64_t rows = queries.count * queries.g;
  const dim3 grid(static_cast<unsigned>((rows + kBlockRows - 1) / kBlockRows), static_cast<unsigned>(cache.kv_heads),
                  static_cast<unsigned>(value_blocks));
  const auto kernel = mixed_attention_rows<S>;
  OSCAR_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<grid, kWarps * kWarp, kBytes, context.stream()>>>(queries, cache, key.view(), value.view(), round_outputs,
                                                             out);
  OSCAR_CUDA_LAUNCHED("mixed_attention_rows");
}

}  // namespace

void mixed_attention(const Context& context, const CacheQueries& queries, const MixedCache& cache, bool round_outputs,
                     float* out) {
  const int key_dim = cache.key.stored.dim, dim = std::max(key_dim, cache.value.stored.dim);
  if (dim > kLargestHead) {
    throw UsageError("heads of " + std::to_string(dim) + " channels are larger than the GPU's attention takes",
                     "--device", "use --device cpu");
  }
  if (queries.count * queries.g == 0) return;
  const auto attend = dim <= 64        ? attend_by<Shape<32, 64, 64>>
                      : key_dim <= 128 ? attend_by<Shape<32, 128, 128>>
                                       : attend_by<Shape<16, 256, 128>>;
  attend(context, queries, cache, round_outputs, out);
}

}  // namespace oscar::cuda
