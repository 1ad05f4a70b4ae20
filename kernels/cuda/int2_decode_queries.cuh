// SPDX-License-Identifier: MIT
// The queries of a block of the INT2 decode kernel, as its integer products take them. S: a DecodeShape.
#pragma once

#include "kernels/cuda/int2_mma.cuh"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

/// Queries of a block as integers of two signed bytes, 4 * unit * (256 * high + low), in shared memory. The error is
/// less than 2^-15 of a head's largest |q|, where bfloat16 has errors of 2^-9 of each.
template <class S>
struct BlockQueries {
  static constexpr int kStride = S::kDim / 4 + 8;  // of a head's high or low words; + 8 against bank conflicts
  static constexpr int kLeastWarps = 4, kMostHeads = (S::kHeads + kLeastWarps - 1) / kLeastWarps;  // of a warp
  static constexpr int kFours = (S::kDim / 4 + kWarp - 1) / kWarp;
  unsigned words[2 * S::kHeads][kStride];  // of 4 channels: of head h, high at 2h and low at 2h + 1
  float unit[S::kHeads];                   // times score_scale; positive, or not finite if a query is not

  /// A warp's share of the queries on their way: heads warp, warp + warps, ... of a block of at least kLeastWarps.
  struct Fetched {
    uint2 fours[kMostHeads][kFours];
  };
  /// q: (num_heads, kDim) of this KV head, 8-byte aligned; heads beyond are zeros.
  __device__ __forceinline__ static Fetched fetch(const __nv_bfloat16* q, int num_heads, int warp, int warps) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    Fetched fetched;
#pragma unroll
    for (int n = 0; n < kMostHeads; ++n) {
      const int head = warp + n * warps;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int channel = 4 * (lane + i * kWarp);
        const bool there = head < num_heads && channel < S::kDim;
        fetched.fours[n][i] = there ? *reinterpret_cast<const uint2*>(q + head * S::kDim + channel) : uint2{0, 0};
      }
    }
    return fetched;
  }

  __device__ __forceinline__ void store(const Fetched& fetched, int warp, int warps, float score_scale) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kMostHeads; ++n) {
      const int head = warp + n * warps;
      if (head >= S::kHeads) return;
      unsigned largest = 0;  // magnitudes are ordered as their bits are, with what is not finite on top
#pragma unroll
      for (const uint2 four : fetched.fours[n]) {
        for (const unsigned pair : {four.x, four.y}) {
          largest = max(largest, max(pair << 16 & 0x7fff0000U, pair & 0x7fff0000U));
        }
      }
      largest = __reduce_max_sync(kAllLanes, largest);
      const float top = __uint_as_float(largest), per_unit = largest == 0 ? 0.0F : kLargest / top;
      if (lane == 0) unit[head] = largest == 0 ? 1.0F : top / (4 * kLargest) * score_scale;
#pragma unroll
      for (int i = 0; i < kFours; ++i) {
        const int word = lane + i * kWarp;
        if (4 * word < S::kDim) split(fetched.fours[n][i], per_unit, head, word);
      }
    }
  }

 private:
  static constexpr float kLargest = 127 * 256;

  __device__ void split(uint2 four, float per_unit, int head, int word) {
    int x[4] = {__float2int_rn(low_bf16(four.x) * per_unit), __float2int_rn(high_bf16(four.x) * per_unit),
                __float2int_rn(low_bf16(four.y) * per_unit), __float2int_rn(high_bf16(four.y) * per_unit)};
    const auto bytes = [&] {
      return __byte_perm(__byte_perm(x[0], x[1], 0x0040), __byte_perm(x[2], x[3], 0x0040), 0x5410);
    };
    words[2 * head + 1][word] = bytes();
    for (int& value : x) value = (value + 128) >> 8;
    words[2 * head][word] = bytes();
  }
};

}  // namespace oscar::cuda
