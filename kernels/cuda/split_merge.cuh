// SPDX-License-Identifier: MIT
// The results of the splits of a sequence, in global memory, and how the last block of the coded decode kernel adds
// them up.
#pragma once

#include "kernels/cuda/coded_attention_scores.cuh"

namespace oscar::cuda {

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
template <class S>
class SplitMerge {
 public:
  __device__ SplitMerge(const PartialView<S>& all, int splits, const CodedHeads& heads, float* factors)
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
  const CodedHeads& heads_;
  int splits_, padded_;
  float* factors_;
};

/// True in every thread of the last of `count` blocks that come here. What the others wrote before can be read then.
__device__ inline bool is_last_block(int* ticket, int count) {
  bool last = false;
  __syncthreads();
  if (threadIdx.x == 0) {
    int before;
    asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;\n" : "=r"(before) : "l"(ticket) : "memory");
    last = before == count - 1;
    if (last) *ticket = 0;  // ready for the next launch
  }
  return __syncthreads_or(last) != 0;
}

__device__ __forceinline__ float sum_over_tokens(float x) {
#pragma unroll
  for (int step = 4; step < kWarp; step *= 2) x += __shfl_xor_sync(kAllLanes, x, step);
  return x;
}

}  // namespace oscar::cuda
