// SPDX-License-Identifier: MIT
// The queries of a block of the coded decode kernel, and their products with packed keys.
#pragma once

#include "kernels/cuda/coded_layout.hpp"
#include "kernels/cuda/int2_mma.cuh"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

/// Classes of channels, in the order of their operands.
inline constexpr int kWideClass = 0, kNarrowClass = 1;

/// What a block reads again and again of its KV head's table, in shared memory.
struct CodedOperands {
  CodedKeyPair key[kMostKeyOperands / 2 + 1];
  CodedValueOperand value[kMostValueOperands + 1];

  __device__ __forceinline__ void load(const CodedHeadTable& table) {
    static_assert(sizeof(CodedKeyPair) == 16 && sizeof(CodedValueOperand) == 16);
    constexpr int kKeys = sizeof(key) / 16, kValues = sizeof(value) / 16;
    for (int i = static_cast<int>(threadIdx.x); i < kKeys + kValues; i += static_cast<int>(blockDim.x)) {
      if (i < kKeys) {
        reinterpret_cast<uint4*>(key)[i] = reinterpret_cast<const uint4*>(table.key_pair)[i];
      } else {
        reinterpret_cast<uint4*>(value)[i - kKeys] = reinterpret_cast<const uint4*>(table.value_operand)[i - kKeys];
      }
    }
  }
};

/// Queries times what a unit of their operand's bytes is worth, as integers of two signed bytes, unit * (256 * high +
/// low), in shared memory: words[pair of operands][key tile][lane][operand of the pair]. Lane (g, t) of a tile has four
/// channels of head g / 2, high bytes if g is even. The error is less than 2^-16 of a head's largest product.
template <class S>
class CodedQueries {
 public:
  /// Bytes of shared memory for `words`.
  __host__ __device__ static int bytes(int key_operands) { return key_operands * S::kKeyTiles * kWarp * 4; }

  __device__ explicit CodedQueries(unsigned* words, float* units) : words_(words), units_(units) {}

  /// q: (num_heads, kDim) of this KV head; a warp takes heads warp, warp + warps, ...
  __device__ __forceinline__ void store(const __nv_bfloat16* q, int num_heads, const CodedHeadTable& table, int warp,
                                        int warps, float score_scale) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, count = 8 * table.key_pairs;  // of words of one head
    for (int head = warp; head < S::kHeads; head += warps) {
      const __nv_bfloat16* const row = head < num_heads ? q + head * S::kDim : nullptr;
      float top = 0;
      for (int i = lane; i < count; i += kWarp) {
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) top = fmaxf(top, fabsf(value(row, table.keys[i / 4], i % 4, byte)));
      }
      top = warp_max(top);
      const float per_unit = top == 0 ? 0.0F : kLargest / top;
      if (lane == 0) units_[head] = top == 0 ? 1.0F : top / kLargest * score_scale;
      for (int i = lane; i < count; i += kWarp) {
        int x[4];
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
          x[byte] = __float2int_rn(value(row, table.keys[i / 4], i % 4, byte) * per_unit);
        }
        unsigned* const to =
            words_ + ((i / 8 * S::kKeyTiles + head / 4) * kWarp + head % 4 * 8 + i % 4) * 2 + i / 4 % 2;
        to[8] = bytes_of(x);  // lane (2 * head + 1, t)
        for (int& each : x) each = (each + 128) >> 8;
        to[0] = bytes_of(x);
      }
    }
  }

  __device__ __forceinline__ float unit(int head) const { return units_[head]; }
  /// The pair of operands' words of a lane.
  __device__ __forceinline__ uint2 pair(int i, int tile, int lane) const {
    return reinterpret_cast<const uint2*>(words_)[(i * S::kKeyTiles + tile) * kWarp + lane];
  }

 private:
  static constexpr float kLargest = 127 * 256;

  __device__ static float value(const __nv_bfloat16* row, const CodedOperandChannels& channels, int t, int byte) {
    const int side = byte % 2, j = 2 * t + byte / 2, channel = channels.channel[side][j];
    return row == nullptr || channel < 0 ? 0.0F : __bfloat162float(row[channel]) * channels.factor[side][j];
  }
  __device__ static unsigned bytes_of(const int (&x)[4]) {
    return __byte_perm(__byte_perm(x[0], x[1], 0x0040), __byte_perm(x[2], x[3], 0x0040), 0x5410);
  }

  unsigned* words_;
  float* units_;
};

/// Adds the shift of a source to what load_matrices() gives: 32 rows of a plane at `planes`, an address in shared
/// memory.
template <bool kTransposed>
__device__ __forceinline__ void load_source(unsigned planes, CodedSource source, int lane, unsigned (&x)[4]) {
  load_matrices<kTransposed>(planes + (source & 0xffffU) + static_cast<unsigned>(lane) * 16, x);
  const unsigned shift = source >> 16 & 7;
#pragma unroll
  for (unsigned& word : x) word >>= shift;
}

/// products[class][tile][half][row] = the sum of q / unit * bytes over the class's channels, for the tokens 16 * half +
/// g + 8 * row of 32 and the lane's head of key tile `tile`. load(source, x) gives the bytes of a source.
template <class S, class Load>
__device__ __forceinline__ void multiply_keys(const CodedQueries<S>& queries, const CodedOperands& operands, int pairs,
                                              int wide_pairs, int lane, const Load& load,
                                              float (&products)[2][S::kKeyTiles][2][2]) {
  int sums[S::kKeyTiles][2][4] = {};
  unsigned x[4] = {};
  const auto take = [&](float(&to)[S::kKeyTiles][2][2]) {
#pragma unroll
    for (int i = 0; i < 4 * S::kKeyTiles; ++i) {
      int(&sum)[4] = sums[i / 4][i / 2 % 2];
      const int row = i % 2;
      to[i / 4][i / 2 % 2][row] = S::kDim < 256
                                      ? static_cast<float>(256 * sum[2 * row] + sum[2 * row + 1])
                                      : 256 * static_cast<float>(sum[2 * row]) + static_cast<float>(sum[2 * row + 1]);
      sum[2 * row] = sum[2 * row + 1] = 0;
    }
  };
  CodedKeyPair next = operands.key[0];
#pragma unroll 1
  for (int i = 0; i < pairs; ++i) {
    const CodedKeyPair pair = next;
    next = operands.key[i + 1];
    if (i == wide_pairs) take(products[kWideClass]);
    if (pair.source0 != 0) load(pair.source0, x);
    unsigned a[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) a[r] = x[r] & pair.mask0;
    if (pair.source1 != 0) load(pair.source1, x);
#pragma unroll
    for (int tile = 0; tile < S::kKeyTiles; ++tile) {
      const uint2 q = queries.pair(i, tile, lane);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        mma_bytes(sums[tile][half], a[2 * half], a[2 * half + 1], x[2 * half] & pair.mask1,
                  x[2 * half + 1] & pair.mask1, q.x, q.y);
      }
    }
  }
  if (wide_pairs == pairs) take(products[kWideClass]);
  take(products[kNarrowClass]);
}

}  // namespace oscar::cuda
