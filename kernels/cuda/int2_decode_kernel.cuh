// SPDX-License-Identifier: MIT
// The INT2 decode kernel itself, and how splits of a sequence are added up, which the coded decode kernel does alike.
#pragma once

#include "kernels/cuda/int2_decode_block.cuh"
#include "kernels/cuda/int2_decode_warp.cuh"
#include "kernels/cuda/int2_launch.cuh"
#include "kernels/cuda/int2_mma.cuh"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

// The results of the splits of a sequence, in global memory, and how the last block of the decode kernels adds them up.

/// The results of the splits of a sequence's part, four heads (a tile) of all splits together: out (4, kDim) relative
/// to the heads' factors, then the heads' sums of weights, then log2 of the factors.
template <class S>
struct PartialView {
  static constexpr int kFloats = partial_floats(4, S::kDim);  // from one split to the next
  float* data;
  int heads, most_splits;

  __device__ __forceinline__ float* out(int split, int tile) const {
    return data + (tile * most_splits + split) * kFloats;
  }
  __device__ __forceinline__ float& sum(int split, int head) const {
    return out(split, head / 4)[4 * S::kDim + head % 4];
  }
  __device__ __forceinline__ float& highest(int split, int head) const { return (&sum(split, head))[4]; }
};

/// 2^(from - to); 0 for a part that saw nothing.
__device__ inline float rescaling(float from, float to) { return from == -INFINITY ? 0.0F : fast_exp2(from - to); }

/// Adds up the splits of a sequence's part and writes its outputs: rows of kDim channels of out, and lse if it is not
/// null, of which heads.row() says which is whose. `factors`: split_merge_bytes() of shared memory. The code is short,
/// since a block that runs it once waits for its instructions.
template <class S, class Heads>
class SplitMerge {
 public:
  __device__ SplitMerge(const PartialView<S>& all, int splits, const Heads& heads, float* factors)
      : all_(all), heads_(heads), splits_(splits), padded_(padded_splits(splits)), factors_(factors) {}

  __device__ __forceinline__ void run(float* out, float* lse) const {
    const int own = static_cast<int>(threadIdx.x), warp = own / kWarp, warps = static_cast<int>(blockDim.x) / kWarp;
    const int items = all_.heads * kPairs;
    Sums sums;
    if (warp < all_.heads) load(warp, 0, sums);
    float2 parts[kSplitsAtOnce];
    if (own < items) load(own, 0, parts);  // on their way while the factors are computed
    for (int head = warp; head < all_.heads; head += warps) {
      if (head != warp) load(head, 0, sums);
      find_factors(head, sums, lse);
    }
    __syncthreads();
    float2 total{0, 0};
#pragma unroll 1
    for (int i = own, split = 0; i < items;) {  // one loop over both: of two the compiler makes slow code
      if (i != own || split > 0) load(i, split, parts);
      const int head = i / kPairs;
      add(reinterpret_cast<const float4*>(factors_ + head * padded_ + split), parts, total);
      split += kSplitsAtOnce;
      if (split < splits_) continue;
      reinterpret_cast<float2*>(out + heads_.row(head) * S::kDim)[i % kPairs] = total;
      total = {0, 0}, split = 0, i += static_cast<int>(blockDim.x);
    }
  }

 private:
  static constexpr int kPairs = S::kDim / 2;  // of channels, which a thread takes at a time

  /// The sums of weights of kAtOnce splits of a head, and log2 of their factors.
  struct Sums {
    static constexpr int kEach = 2, kAtOnce = kEach * kWarp;
    float sum[kEach], highest[kEach];
  };

  /// Pair i of all heads' channels in kSplitsAtOnce splits.
  __device__ __forceinline__ void load(int i, int split, float2 (&parts)[kSplitsAtOnce]) const {
    const auto* const from = reinterpret_cast<const float2*>(all_.out(split, i / (4 * kPairs))) + i % (4 * kPairs);
#pragma unroll
    for (int s = 0; s < kSplitsAtOnce; ++s) {
      parts[s] = split + s < splits_ ? __ldcg(from + s * (PartialView<S>::kFloats / 2)) : float2{0, 0};
    }
  }
  __device__ __forceinline__ void load(int head, int first, Sums& sums) const {
#pragma unroll
    for (int n = 0; n < Sums::kEach; ++n) {
      const int split = first + n * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      const bool there = split < splits_;
      sums.sum[n] = there ? __ldcg(&all_.sum(split, head)) : 0.0F;
      sums.highest[n] = there ? __ldcg(&all_.highest(split, head)) : -INFINITY;
    }
  }
  __device__ __forceinline__ static void add(const float4* factors, const float2 (&parts)[kSplitsAtOnce],
                                             float2& total) {
#pragma unroll
    for (int s = 0; s < kSplitsAtOnce; s += 4) {
      const float4 by = factors[s / 4];
      total.x += by.x * parts[s].x, total.y += by.x * parts[s].y;
      total.x += by.y * parts[s + 1].x, total.y += by.y * parts[s + 1].y;
      total.x += by.z * parts[s + 2].x, total.y += by.z * parts[s + 2].y;
      total.x += by.w * parts[s + 3].x, total.y += by.w * parts[s + 3].y;
    }
  }

  /// What the splits of a head must be multiplied by; 0 beyond the last. `sums`: of the first splits.
  __device__ __forceinline__ void find_factors(int head, Sums sums, float* lse) const {
    float top = -INFINITY, sum = 0;
    for_splits(head, sums, [&](int, float, float highest) { top = fmaxf(top, highest); });
    top = warp_max(top);
    for_splits(head, sums, [&](int, float of_split, float highest) { sum += rescaling(highest, top) * of_split; });
    sum = warp_sum(sum);
    const float by = sum > 0 ? 1 / sum : 0.0F;
    for_splits(head, sums, [&](int split, float, float highest) {
      if (split < padded_) factors_[head * padded_ + split] = rescaling(highest, top) * by;
    });
    if (threadIdx.x % kWarp == 0 && lse != nullptr) lse[heads_.row(head)] = (top + log2f(sum)) * 0.6931471805599453F;
  }
  /// task(split, sum of weights, log2 of its factor) for the lane's splits.
  template <class Task>
  __device__ __forceinline__ void for_splits(int head, Sums& sums, const Task& task) const {
#pragma unroll 1
    for (int first = 0; first < padded_; first += Sums::kAtOnce) {
      if (padded_ > Sums::kAtOnce) load(head, first, sums);
#pragma unroll
      for (int n = 0; n < Sums::kEach; ++n) {
        task(first + n * kWarp + static_cast<int>(threadIdx.x) % kWarp, sums.sum[n], sums.highest[n]);
      }
    }
  }

  const PartialView<S>& all_;
  const Heads& heads_;
  int splits_, padded_;
  float* factors_;
};

/// True in every thread of the last of `count` blocks that come here. What the others wrote before can be read then.
__device__ inline bool is_last_block(int* ticket, int count) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;\n" : "=r"(before) : "l"(ticket) : "memory");
    last = before == count - 1;
    if (last) *ticket = 0;  // ready for the next launch
  }
  __syncthreads();
  return last;
}

// The INT2 decode kernel itself: who does what, and how the parts are added up.

__device__ __forceinline__ float sum_over_tokens(float x) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

/// Floats of a head in what a warp hands to merge_warps(); + 8 against bank conflicts.
template <class S>
inline constexpr int kMergeStride = S::kDim + 8;
/// Bytes of a warp's copies that merge_warps() needs.
template <class S>
inline constexpr int kMergeBytes = 4 * kMergeStride<S> * 4;

/// The channels of a lane's head of one warp, to rows[head][channel]: of packed values less `zero`, in all lanes the
/// sum over the warp's tokens.
template <class S>
__device__ __forceinline__ void write_packed(const WarpState<S>& state, int tile_of_heads, float* rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4;
  float* const row = rows + lane % 4 * kMergeStride<S>;
  const auto& out = state.out[tile_of_heads / 2];
  const int j = tile_of_heads % 2;
  float zero[S::kGroups];
#pragma unroll
  for (int i = 0; i < S::kGroups; ++i) zero[i] = sum_over_tokens(state.zero[tile_of_heads][i]);
#pragma unroll
  for (int piece = 0; piece < S::kPieces; ++piece) {
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      const auto value = [&](int half, int odd) {
        const float unit = 16777216 / code_factor(quarter + 4 * odd);
        return out[8 * piece + 4 * half + quarter][2 * odd + j] * unit - zero[S::group(quarter, piece)];
      };
      float* const to = row + quarter * S::kRowBytes + 32 * piece;
      if constexpr (S::kDim == 64) {
        *reinterpret_cast<float2*>(to + 2 * g) = {value(0, 0), value(0, 1)};
      } else {
        *reinterpret_cast<float4*>(to + 4 * g) = {value(0, 0), value(0, 1), value(1, 0), value(1, 1)};
      }
    }
  }
}

template <class S>
__device__ __forceinline__ void write_window(const WarpState<S>& state, int tile_of_heads, float* rows) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, g = lane / 4;
  float* const row = rows + lane % 4 * kMergeStride<S>;
  const auto& out = state.out[tile_of_heads / 2];
  const int j = tile_of_heads % 2;
#pragma unroll
  for (int tile = 0; tile < S::kTiles; ++tile) {
    const int channel = 64 * (tile / 4) + 8 * g + 2 * (tile % 4);
    *reinterpret_cast<float2*>(row + channel) = {out[tile][j], out[tile][j + 2]};
  }
}

/// Adds up the block's warps: `state` of each, at last in split `split` of `to`. Each warp's results lie where its
/// copies did, of `warp_bytes`. write_packed(tile of heads, rows) writes the warp's channels of packed values to
/// rows[head][channel].
template <class S, class Write>
__device__ __forceinline__ void merge_warps(const WarpState<S>& state, bool packed, unsigned char* copies,
                                            int warp_bytes, int warps, const PartialView<S>& to, int split,
                                            const Write& write_packed) {
  constexpr int kStride = kMergeStride<S>;
  const auto result = [&](int of_warp) { return reinterpret_cast<float*>(copies + of_warp * warp_bytes); };
  __shared__ float highest[S::kHeads][kMostDecodeWarps], sums[S::kHeads][kMostDecodeWarps];
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int tile = 0; tile < S::kKeyTiles; ++tile) {
    if (tile > 0) __syncthreads();
    __syncwarp();
    if (packed) {
      write_packed(tile, result(warp));
    } else {
      write_window(state, tile, result(warp));
    }
    const float own_sum = sum_over_tokens(state.sum[tile]);
    if (lane < 4) highest[4 * tile + lane][warp] = state.highest[tile], sums[4 * tile + lane][warp] = own_sum;
    __syncthreads();
    const int items = min(4, to.heads - 4 * tile) * S::kDim / 2;
    for (int i = static_cast<int>(threadIdx.x); i < items; i += static_cast<int>(blockDim.x)) {
      const int head = 4 * tile + i / (S::kDim / 2), channel = i % (S::kDim / 2) * 2;
      float top = highest[head][0], sum = 0;
#pragma unroll
      for (int w = 1; w < kMostDecodeWarps; ++w) top = w < warps ? fmaxf(top, highest[head][w]) : top;
      float2 total{0, 0};
#pragma unroll
      for (int w = 0; w < kMostDecodeWarps; ++w) {
        if (w >= warps) break;
        const float factor = rescaling(highest[head][w], top);
        const float2 part = *reinterpret_cast<const float2*>(result(w) + head % 4 * kStride + channel);
        total.x += factor * part.x, total.y += factor * part.y;
        sum += factor * sums[head][w];
      }
      *reinterpret_cast<float2*>(to.out(split, tile) + head % 4 * S::kDim + channel) = total;
      if (channel == 0) to.sum(split, head) = sum, to.highest(split, head) = top;
    }
  }
}

/// Grid: (num_kv_heads * parts, batch, splits), blocks of rule.warps warps. Windows come last: they are short, and fill
/// the places that are free when the last pieces of histories are being read.
template <class S>
__global__ void __launch_bounds__(32 * kMostDecodeWarps, S::kBlocks)
    int2_decode(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const int split = static_cast<int>(gridDim.z - 1 - blockIdx.z);
  const int part = static_cast<int>(blockIdx.x), sequence = static_cast<int>(blockIdx.y), kv_head = part / p.parts;
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int heads_per_kv = p.args.num_q_heads / p.args.num_kv_heads, part_first = part % p.parts * p.part_heads;
  const int first_head = kv_head * heads_per_kv + part_first;
  const int num_heads = min(p.part_heads, heads_per_kv - part_first);
  const QueryHeads heads{static_cast<const __nv_bfloat16*>(p.args.q) +
                             (std::int64_t{sequence} * p.args.num_q_heads + first_head) * S::kDim,
                         num_heads};
  HistoryWarp<S> history(p, sequence, kv_head, shared + warp * DecodeStages<S>::kWarpBytes);
  // Most sequences are as long as the longest: its pages are looked up while the length is on its way.
  const int longest = p.args.history.max_length, likely_first = p.longest.history_first(split);
  follow_previous_launch();
  if (likely_first >= 0 && likely_first < longest) {
    history.look_up(likely_first, min(likely_first + p.longest.history_tokens, longest), warp);
  }
  const auto fetched = BlockQueries<S>::fetch(heads.q, num_heads, warp, p.rule.warps);
  const int length = p.args.history.lengths[sequence], window = p.args.window.lengths[sequence];
  const bool likely = length == longest && window == p.args.window.max_length;
  const SplitPlan plan = likely ? p.longest : SplitPlan(length, window, p.rule);
  if (split >= plan.count()) return;

  WarpState<S> state;
  const bool packed = split >= plan.window_splits;
  if (!packed) {
    const int first = split * plan.window_tokens, end = min(first + plan.window_tokens, window);
    const WindowWarp<S, DecodeParams> work(p, sequence, kv_head);
    work.fetch(first, end);
    work.run(first, end, warp, heads, state);
  } else {
    __shared__ BlockQueries<S> queries;
    const int first = plan.history_first(split), end = min(first + plan.history_tokens, length);
    if (!history.has(first, end, warp)) history.look_up(first, end, warp);
    history.start();
    queries.store(fetched, warp, p.rule.warps, p.score_scale);
    __syncthreads();
    history.run(PackedQueries<S>(queries, lane), state);
  }
  const std::int64_t unit = std::int64_t{sequence} * gridDim.x + part;
  const PartialView<S> all{p.partials + unit * p.unit_floats, num_heads, p.max_splits};
  using Stages = DecodeStages<S>;
  static_assert(kMergeBytes<S> <= Stages::kWarpBytes);
  merge_warps<S>(state, packed, shared, Stages::kWarpBytes, p.rule.warps, all, split,
                 [&](int tile, float* rows) { write_packed<S>(state, tile, rows); });
  if (!is_last_block(p.tickets + unit, plan.count())) return;
  const std::int64_t row = std::int64_t{sequence} * p.args.num_q_heads + first_head;
  SplitMerge<S, QueryHeads>(all, plan.count(), heads, reinterpret_cast<float*>(shared))
      .run(p.args.out + row * S::kDim, p.args.lse == nullptr ? nullptr : p.args.lse + row);
}

}  // namespace oscar::cuda
