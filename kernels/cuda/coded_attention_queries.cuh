// SPDX-License-Identifier: MIT
// The queries of a block of the coded decode kernel, and their products with packed keys.
#pragma once

#include "kernels/cuda/coded_layout.hpp"
#include "kernels/cuda/int2_mma.cuh"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

/// Classes of channels, in the order of their operands.
inline constexpr int kWideClass = 0, kNarrowClass = 1;

/// Loads 16, 8 or 4 bytes at an address in shared memory.
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
__device__ __forceinline__ void store_shared_word(unsigned to, unsigned x) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(to), "r"(x) : "memory");
}
__device__ __forceinline__ void store_shared(unsigned to, float4 x) {
  asm volatile("st.shared.v4.f32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

/// The query heads of a block: heads of one KV head, those of each query token together.
struct CodedHeads {
  const __nv_bfloat16* q;            // of the sequence's first token and the KV head's first query head
  int count, first;                  // heads; the first of them
  int per_token, per_token_inverse;  // heads of a KV head; 2^16 / per_token, rounded up
  int stride, tokens, window;        // query heads of a token; query tokens; tokens of the window

  __device__ __forceinline__ int token(int head) const { return (first + head) * per_token_inverse >> 16; }
  /// The index of a head's row, in rows from q on.
  __device__ __forceinline__ int row(int head) const {
    const int of_token = token(head);
    return of_token * (stride - per_token) + first + head;
  }
  /// The end of the part of the window up to `end` that the head sees: not the query tokens after its own.
  __device__ __forceinline__ int window_end(int head, int end) const {
    return min(end, window - (tokens - 1 - token(head)));
  }
};

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

  /// A warp takes heads warp, warp + warps, ..., so many at once that their loads are one wait.
  __device__ __forceinline__ void store(const CodedHeads& heads, const CodedHeadTable& table, int warp, int warps,
                                        float score_scale) const {
    for (int first = warp; first < S::kHeads; first += kAtOnce * warps) {
      const __nv_bfloat16* rows[kAtOnce];
      float per_unit[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int head = first + n * warps;
        rows[n] = head < heads.count ? heads.q + heads.row(head) * S::kDim : nullptr;
      }
      find_units(rows, first, warps, table, score_scale, per_unit);
#pragma unroll 2
      for (int i = lane(); i < 8 * table.key_end[1][1]; i += kWarp) {
        const CodedKeyWord word = table.key_word[i / 4][i % 4];
#pragma unroll
        for (int n = 0; n < kAtOnce; ++n) {
          if (first + n * warps < S::kHeads) store_word(word, rows[n], per_unit[n], first + n * warps, i);
        }
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
  static constexpr int kAtOnce = S::kKeyTiles;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  /// What a unit of each head is worth, to units_, and how many units a product of 1 is.
  __device__ __forceinline__ void find_units(const __nv_bfloat16* const (&rows)[kAtOnce], int first, int warps,
                                             const CodedHeadTable& table, float score_scale,
                                             float (&per_unit)[kAtOnce]) const {
    float tops[kAtOnce] = {};
#pragma unroll
    for (int i = lane(); i < S::kDim; i += kWarp) {
      const float factor = table.key_top[i];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) tops[n] = fmaxf(tops[n], fabsf(value(rows[n], i) * factor));
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const float top = warp_max(tops[n]);
      per_unit[n] = top == 0 ? 0.0F : kLargest / top;
      const bool writes = lane() == 0 && first + n * warps < S::kHeads;
      if (writes) units_[first + n * warps] = top == 0 ? 1.0F : top / kLargest * score_scale;
    }
  }

  /// The i-th word of a head.
  __device__ __forceinline__ void store_word(const CodedKeyWord& word, const __nv_bfloat16* row, float per_unit,
                                             int head, int i) const {
    int x[4];
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      x[byte] = __float2int_rn(value(row, word.channel[byte]) * word.factor[byte] * per_unit);
    }
    unsigned* const to = words_ + ((i / 8 * S::kKeyTiles + head / 4) * kWarp + head % 4 * 8 + i % 4) * 2 + i / 4 % 2;
    to[8] = bytes_of(x);  // lane (2 * head + 1, t)
    for (int& each : x) each = (each + 128) >> 8;
    to[0] = bytes_of(x);
  }

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
