// SPDX-License-Identifier: MIT
// The queries of a block of the coded decode kernel, and their products with packed keys.
#pragma once

#include "kernels/cuda/coded_layout.hpp"
#include "kernels/cuda/int2_mma.cuh"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

/// Classes of channels, in the order of their operands.
inline constexpr int kWideClass = 0, kNarrowClass = 1;

/// At an address in shared memory: 16, 8 or 4 bytes.
__device__ __forceinline__ uint4 load_shared(unsigned from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from));
  return x;
}
__device__ __forceinline__ uint2 load_shared_pair(unsigned from) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];\n" : "=r"(x.x), "=r"(x.y) : "r"(from));
  return x;
}

__device__ __forceinline__ unsigned load_shared_word(unsigned from) {
  unsigned x;
  asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(x) : "r"(from));
  return x;
}
__device__ __forceinline__ void store_shared(unsigned to, float4 x) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

/// What a block reads again and again of its KV head's table, in shared memory.
template <class S>
struct CodedOperands {
  static constexpr int kParts = 2 * S::kOperands, kBlocks = S::kDim / 8;
  CodedKeyPair key[kMostKeyOperands / 2 + 1];
  CodedValuePair value[S::kOperands / 2 + 1];
  CodedValuePart part[kParts];
  std::int32_t block_end[kBlocks];
  float value_step[S::kDim];

  /// Begins to copy; the caller waits for the group of copies.
  __device__ __forceinline__ void load(const CodedHeadTable& table) {
    copy(key, table.key_pair);
    copy(value, table.value_pair);
    copy(part, table.value_part);
    copy(block_end, table.block_end);
    copy(value_step, table.value_step);
    commit_copies();
  }

 private:
  template <class T, int kCount, int kMost>
  __device__ __forceinline__ static void copy(T (&to)[kCount], const T (&from)[kMost]) {
    static_assert(kCount <= kMost && sizeof(to) % 16 == 0);
    const auto first = static_cast<unsigned>(__cvta_generic_to_shared(to));
    for (int i = static_cast<int>(threadIdx.x); i < static_cast<int>(sizeof(to)) / 16;
         i += static_cast<int>(blockDim.x)) {
      copy_async<16>(first + 16 * i, reinterpret_cast<const unsigned char*>(from) + 16 * i);
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
    const int lane = static_cast<int>(threadIdx.x) % kWarp, count = 8 * table.key_end[1][1];  // of words of one head
    for (int head = warp; head < S::kHeads; head += warps) {
      const __nv_bfloat16* const row = head < num_heads ? q + head * S::kDim : nullptr;
      float top = 0;
#pragma unroll
      for (int i = lane; i < S::kDim; i += kWarp) top = fmaxf(top, fabsf(value(row, i) * table.key_top[i]));
      top = warp_max(top);
      const float per_unit = top == 0 ? 0.0F : kLargest / top;
      if (lane == 0) units_[head] = top == 0 ? 1.0F : top / kLargest * score_scale;
#pragma unroll 2
      for (int i = lane; i < count; i += kWarp) {
        const CodedKeyWord word = table.key_word[i / 4][i % 4];
        int x[4];
#pragma unroll
        for (int byte = 0; byte < 4; ++byte) {
          x[byte] = __float2int_rn(value(row, word.channel[byte]) * word.factor[byte] * per_unit);
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
  /// Where the lane's words of the first pair of operands are in shared memory; those of other pairs and tiles follow.
  __device__ __forceinline__ unsigned pairs(int lane) const {
    return static_cast<unsigned>(__cvta_generic_to_shared(words_)) + 8 * lane;
  }
  static constexpr int kTileBytes = 8 * kWarp, kPairBytes = S::kKeyTiles * kTileBytes;

 private:
  static constexpr float kLargest = 127 * 256;

  __device__ static float value(const __nv_bfloat16* row, int channel) {
    return row == nullptr || channel < 0 ? 0.0F : __bfloat162float(row[channel]);
  }
  __device__ static unsigned bytes_of(const int (&x)[4]) {
    return __byte_perm(__byte_perm(x[0], x[1], 0x0040), __byte_perm(x[2], x[3], 0x0040), 0x5410);
  }

  unsigned* words_;
  float* units_;
};

/// Adds to sums[tile][half] the products of the queries with the pairs of operands [from, to), for S::kHalves times 16
/// tokens: of the tokens 16 * half + g and 16 * half + g + 8 those with the high and those with the low bytes of the
/// lane's head of key tile `tile`. operands, queries: where the pairs and the lane's words lie in shared memory.
/// load(group, offset, x) gives rows 32 * group to 32 * group + 31 of the plane at `offset`, which the table has for 32
/// rows; kUpper: whether the operands have the upper halves of bytes.
template <bool kUpper, class S, class Load>
__device__ __forceinline__ void multiply_keys(unsigned operands, unsigned queries, int from, int to, const Load& load,
                                              int (&sums)[S::kKeyTiles][S::kHalves][4]) {
  uint4 next = load_shared(operands + static_cast<unsigned>(from * sizeof(CodedKeyPair)));
#pragma unroll 1
  for (int i = from; i < to; ++i) {
    const uint4 pair = next;
    next = load_shared(operands + static_cast<unsigned>((i + 1) * sizeof(CodedKeyPair)));
    unsigned x[S::kHalves / 2][2][4];
#pragma unroll
    for (int group = 0; group < S::kHalves / 2; ++group) {
      load(group, pair.z, x[group][0]);
      load(group, pair.w, x[group][1]);
      if (!kUpper) continue;
#pragma unroll
      for (auto& words : x[group]) {
#pragma unroll
        for (unsigned& word : words) word >>= 4;
      }
    }
#pragma unroll
    for (int tile = 0; tile < S::kKeyTiles; ++tile) {
      const uint2 q = load_shared_pair(queries + i * CodedQueries<S>::kPairBytes + tile * CodedQueries<S>::kTileBytes);
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        const unsigned(&first)[4] = x[half / 2][0], (&second)[4] = x[half / 2][1];
        const int at = half % 2 * 2;
        mma_bytes(sums[tile][half], first[at] & pair.x, first[at + 1] & pair.x, second[at] & pair.y,
                  second[at + 1] & pair.y, q.x, q.y);
      }
    }
  }
}

}  // namespace oscar::cuda
