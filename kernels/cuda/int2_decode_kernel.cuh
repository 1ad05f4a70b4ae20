// SPDX-License-Identifier: MIT
// The INT2 decode kernel itself: who does what, and how the parts are added up.
#pragma once

#include "kernels/cuda/decode_splits.cuh"
#include "kernels/cuda/int2_decode_window.cuh"
#include "kernels/cuda/int2_launch.cuh"

namespace oscar::cuda {

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
