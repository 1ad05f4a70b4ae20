// SPDX-License-Identifier: MIT
// The INT2 decode kernel itself: who does what, and how the parts are added up.
#pragma once

#include "kernels/cuda/int2_decode_window.cuh"
#include "kernels/cuda/int2_launch.cuh"

namespace oscar::cuda {

/// The result of one split: out (heads, kDim) relative to the heads' factors, then the heads' sums of weights, then
/// log2 of the factors.
struct PartialView {
  float* data;
  int heads, dim;
  __device__ float* out() const { return data; }
  __device__ float& sum(int head) const { return data[heads * dim + head]; }
  __device__ float& highest(int head) const { return data[heads * (dim + 1) + head]; }
  __device__ PartialView split(int i) const {
    const int size = (heads * (dim + 2) + 3) / 4 * 4;  // whole 16 bytes
    return {data + static_cast<std::int64_t>(i) * size, heads, dim};
  }
};

/// 2^(from - to); 0 for a part that saw nothing.
__device__ inline float rescaling(float from, float to) { return from == -INFINITY ? 0.0F : fast_exp2(from - to); }

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

/// Adds up the block's warps: `state` of each, at last in `to`. Each warp's results lie where its copies did, of
/// `warp_bytes`. write_packed(tile of heads, rows) writes the warp's channels of packed values to rows[head][channel].
template <class S, class Write>
__device__ __forceinline__ void merge_warps(const WarpState<S>& state, bool packed, unsigned char* copies,
                                            int warp_bytes, int warps, PartialView to, const Write& write_packed) {
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
      *reinterpret_cast<float2*>(to.out() + head * S::kDim + channel) = total;
      if (channel == 0) to.sum(head) = sum, to.highest(head) = top;
    }
  }
}

/// Adds up the splits of a sequence's part and writes its outputs: rows of kDim channels of out, and lse if it is not
/// null, of which heads.row() says which is whose. Four heads at a time. `scratch`: 8 floats a split.
template <class S, class Heads>
class SplitMerge {
 public:
  __device__ SplitMerge(PartialView all, int splits, const Heads& heads, float* scratch)
      : all_(all), splits_(splits), heads_(heads), scratch_(scratch) {}

  __device__ __forceinline__ void run(float* out, float* lse) const {
    for (int first = 0; first < all_.heads; first += 4) {
      const int heads = min(4, all_.heads - first), items = heads * S::kDim / 2;
      float2 parts[kAhead];
      const int own = static_cast<int>(threadIdx.x);
      if (own < items) load(first, own, 0, parts);  // on their way while the factors are computed
      if (first > 0) __syncthreads();
      if (own / kWarp < heads) find_factors(first, own / kWarp, lse);
      __syncthreads();
      for (int i = own; i < items; i += static_cast<int>(blockDim.x)) {
        if (i != own) load(first, i, 0, parts);
        float2 total{0, 0};
        add(i, 0, parts, total);
        for (int s = kAhead; s < splits_; s += kAhead) {
          load(first, i, s, parts);
          add(i, s, parts, total);
        }
        const int row = heads_.row(first + i / (S::kDim / 2));
        reinterpret_cast<float2*>(out + row * S::kDim)[i % (S::kDim / 2)] = total;
      }
    }
  }

 private:
  static constexpr int kAhead = 36;  // as many as a single sequence of 8 KV heads has

  __device__ __forceinline__ void load(int first, int i, int split, float2 (&parts)[kAhead]) const {
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const auto* const from = reinterpret_cast<const float2*>(all_.split(split + s).out() + first * S::kDim) + i;
      parts[s] = split + s < splits_ ? __ldcg(from) : float2{0, 0};
    }
  }
  __device__ __forceinline__ void add(int i, int split, const float2 (&parts)[kAhead], float2& total) const {
    const float* const factor = scratch_ + i / (S::kDim / 2) * 2 * splits_ + split;
#pragma unroll
    for (int s = 0; s < kAhead; ++s) {
      const float by = split + s < splits_ ? factor[s] : 0.0F;
      total.x += by * parts[s].x, total.y += by * parts[s].y;
    }
  }

  /// What the splits of head first + h must be multiplied by, to scratch.
  __device__ void find_factors(int first, int h, float* lse) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    float *const factors = scratch_ + 2 * h * splits_, *const sums = factors + splits_;
    float top = -INFINITY, sum = 0;
#pragma unroll 2  // so that 64 splits are one wait
    for (int i = lane; i < splits_; i += kWarp) {
      const float highest = __ldcg(&all_.split(i).highest(first + h));
      sums[i] = __ldcg(&all_.split(i).sum(first + h));
      factors[i] = highest;
      top = fmaxf(top, highest);
    }
    for (int step = 1; step < kWarp; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, step));
    for (int i = lane; i < splits_; i += kWarp) {
      factors[i] = rescaling(factors[i], top);
      sum += factors[i] * sums[i];
    }
    for (int step = 1; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    for (int i = lane; i < splits_; i += kWarp) factors[i] *= sum > 0 ? 1 / sum : 0.0F;
    if (lane == 0 && lse != nullptr) lse[heads_.row(first + h)] = (top + log2f(sum)) * 0.6931471805599453F;
  }

  PartialView all_;
  int splits_;
  const Heads& heads_;
  float* scratch_;
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
    const int first = split * plan.window_tokens;
    WindowWarp<S, DecodeParams>(p, sequence, kv_head)
        .run(first, min(first + plan.window_tokens, window), warp, heads, state);
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
  const PartialView all{p.partials + unit * p.unit_floats, num_heads, S::kDim};
  using Stages = DecodeStages<S>;
  static_assert(kMergeBytes<S> <= Stages::kWarpBytes);
  merge_warps<S>(state, packed, shared, Stages::kWarpBytes, p.rule.warps, all.split(split),
                 [&](int tile, float* rows) { write_packed<S>(state, tile, rows); });
  if (!is_last_block(p.tickets + unit, plan.count())) return;
  const std::int64_t row = std::int64_t{sequence} * p.args.num_q_heads + first_head;
  SplitMerge<S, QueryHeads>(all, plan.count(), heads, reinterpret_cast<float*>(shared))
      .run(p.args.out + row * S::kDim, p.args.lse == nullptr ? nullptr : p.args.lse + row);
}

}  // namespace oscar::cuda
