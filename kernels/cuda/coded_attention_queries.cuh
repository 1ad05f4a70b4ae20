// SPDX-License-Identifier: MIT
// The queries of a block of the coded decode kernel, and their products with packed keys.
#pragma once

#include "kernels/cuda/coded_layout.hpp"
#include "kernels/cuda/int2_mma.cuh"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

/// Classes of channels, in the order of their operands.
inline constexpr int kWideClass = 0, kNarrowClass = 1;

/// `by`: of which the lowest five bits count.
__device__ __forceinline__ unsigned shift_right(unsigned x, unsigned by) { return __funnelshift_r(x, 0, by); }

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
    const int lane = static_cast<int>(threadIdx.x) % kWarp, count = 8 * table.key_pairs;  // of words of one head
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
  /// The pair of operands' words of a lane.
  __device__ __forceinline__ uint2 pair(int i, int tile, int lane) const {
    return reinterpret_cast<const uint2*>(words_)[(i * S::kKeyTiles + tile) * kWarp + lane];
  }

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
/// lane's head of key tile `tile`. load(group, offset, x) gives rows 32 * group to 32 * group + 31 of the plane at
/// `offset`, which the table has for 32 rows.
template <class S, class Load>
__device__ __forceinline__ void multiply_keys(const CodedQueries<S>& queries, const CodedOperands<S>& operands,
                                              int from, int to, int lane, const Load& load,
                                              int (&sums)[S::kKeyTiles][S::kHalves][4]) {
  CodedKeyPair next = operands.key[from];
#pragma unroll 1
  for (int i = from; i < to; ++i) {
    const CodedKeyPair pair = next;
    next = operands.key[i + 1];
    unsigned x[S::kHalves / 2][4];
#pragma unroll
    for (int group = 0; group < S::kHalves / 2; ++group)
      load(group, pair.shift[0] >> (S::kHalves == 4 ? 7 : 8), x[group]);
#pragma unroll
    for (int tile = 0; tile < S::kKeyTiles; ++tile) {
      const uint2 q = queries.pair(i, tile, lane);
#pragma unroll
      for (int half = 0; half < S::kHalves; ++half) {
        const unsigned top = x[half / 2][half % 2 * 2], bottom = x[half / 2][half % 2 * 2 + 1];
        mma_bytes(sums[tile][half], shift_right(top, pair.shift[0]) & pair.mask[0],
                  shift_right(bottom, pair.shift[0]) & pair.mask[0], shift_right(top, pair.shift[1]) & pair.mask[1],
                  shift_right(bottom, pair.shift[1]) & pair.mask[1], q.x, q.y);
      }
    }
  }
}

}  // namespace oscar::cuda
