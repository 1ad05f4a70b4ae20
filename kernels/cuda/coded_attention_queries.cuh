// SPDX-License-Identifier: MIT
// The queries of a block of the coded decode kernel, and their products with packed keys.
#pragma once

#include "kernels/cuda/coded_layout.hpp"
#include "kernels/cuda/tensor_cores.cuh"
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

__device__ __forceinline__ unsigned load_shared_half(unsigned from) {
  unsigned x;
  asm volatile("{.reg .u16 h; ld.shared.u16 h, [%1]; cvt.u32.u16 %0, h;}\n" : "=r"(x) : "r"(from));
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
__device__ __forceinline__ void store_shared(unsigned to, uint4 x) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};\n" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
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
  CodedPairs pairs;
  CodedKeyPair key[kMostKeyOperands / 2 + 1];
  CodedValuePair value[S::kOperands / 2 + 1];
  CodedValuePart part[kParts];
  std::int32_t block_end[kBlocks];
  float value_step[S::kDim];

  /// Begins to copy; the caller waits for the group of copies.
  __device__ __forceinline__ void load(const CodedHeadTable& table) {
    copy(&pairs, &table.pairs, sizeof(pairs));
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
    copy(to, from, sizeof(to));
  }
  __device__ __forceinline__ static void copy(void* to, const void* from, int bytes) {
    const auto first = static_cast<unsigned>(__cvta_generic_to_shared(to));
    for (int i = static_cast<int>(threadIdx.x); i < bytes / 16; i += static_cast<int>(blockDim.x)) {
      copy_async<16>(first + 16 * i, static_cast<const unsigned char*>(from) + 16 * i);
    }
  }
};

/// Queries times what a unit of their operand's bytes is worth, as integers of two signed bytes, unit * (256 * high +
/// low), in shared memory: words[pair of operands][key tile][lane][operand of the pair]. Lane (g, t) of a tile has four
/// channels of head g / 2, high bytes if g is even. The error is less than 2^-16 of a head's largest product,
/// but of keys before RoPE that of float16.
template <class S>
class CodedQueries {
 public:
  static constexpr float kLargest = 127 * 256;

  __device__ explicit CodedQueries(unsigned* words, float* units) : words_(words), units_(units) {}

  /// Stores the i-th word of a head from four integers of at most kLargest; changes x.
  __device__ __forceinline__ void store(int head, int i, int (&x)[4]) const {
    unsigned* const to = words_ + ((i / 8 * S::kKeyTiles + head / 4) * kWarp + head % 4 * 8 + i % 4) * 2 + i / 4 % 2;
    to[8] = bytes_of(x);  // lane (2 * head + 1, t)
    for (int& each : x) each = (each + 128) >> 8;
    to[0] = bytes_of(x);
  }
  /// What a unit of a head's scores is worth; not finite if one of its queries is not.
  __device__ __forceinline__ float& unit(int head) const { return units_[head]; }
  /// Where the lane's words of the first pair of operands are in shared memory; those of other pairs and tiles follow.
  __device__ __forceinline__ unsigned pairs(int lane) const {
    return static_cast<unsigned>(__cvta_generic_to_shared(words_)) + 8 * lane;
  }
  static constexpr int kTileBytes = 8 * kWarp, kPairBytes = S::kKeyTiles * kTileBytes;

 private:
  __device__ static unsigned bytes_of(const int (&x)[4]) {
    return __byte_perm(__byte_perm(x[0], x[1], 0x0040), __byte_perm(x[2], x[3], 0x0040), 0x5410);
  }

  unsigned* words_;
  float* units_;
};

/// A warp's share of the work of making CodedQueries: of some heads 32 words at a time, of which each lane makes one.
/// The table may be read before the wait for the launch before; fetch() comes after it, and before the lengths are
/// used, so that queries and lengths are one wait.
template <class S>
class CodedQueryShare {
 public:
  static constexpr int kAtOnce = S::kDim == 256 ? 2 : 4;       // heads
  static constexpr int kScratchBytes = kAtOnce * 2 * S::kDim;  // of shared memory, of a warp

  /// Begins to read the table.
  __device__ __forceinline__ CodedQueryShare(const CodedHeadTable& table, int key_operands, int warp, int warps)
      : table_(&table), lane_(static_cast<int>(threadIdx.x) % kWarp), words_(4 * key_operands) {
    const int for_head = min((max(words_, 1) + kWarp - 1) / kWarp, warps);  // warps
    groups_ = warps / for_head, stride_ = for_head * kWarp;
    group_ = warp / for_head < groups_ ? warp / for_head : S::kHeads;
    first_word_ = warp % for_head * kWarp + lane_;
    word_ = word(first_word_);
    tops_ = reinterpret_cast<const Tops*>(table.key_top)[lane_];
  }

  /// Begins to read the queries of the first heads.
  __device__ __forceinline__ void fetch(const CodedHeads& heads) { fetch(heads, group_); }

  /// scratch: kScratchBytes of this warp.
  __device__ __forceinline__ void store(const CodedHeads& heads, const CodedQueries<S>& queries, unsigned char* scratch,
                                        float score_scale) {
    for (int i = first_word_; i - lane_ < max(words_, 1); i += stride_) {  // of keys without bits the units alone
      if (i != first_word_) word_ = word(i);
      for (int head = group_; head < S::kHeads; head += kAtOnce * groups_) {
        if (i != first_word_ || head != group_) fetch(heads, head);
        store_heads(queries, head, i, reinterpret_cast<__nv_bfloat16*>(scratch), score_scale);
      }
    }
  }

 private:
  static constexpr int kOwn = S::kDim / kWarp;  // channels of a lane
  struct alignas(kOwn * 2 < 16 ? kOwn * 2 : 16) Piece {
    unsigned pair[kOwn / 2];
  };
  struct alignas(kOwn * 4 < 16 ? kOwn * 4 : 16) Tops {
    float of[kOwn];
  };

  __device__ __forceinline__ CodedKeyWord word(int i) const {
    return i < words_ ? table_->key_word[i / 4][i % 4] : CodedKeyWord{{}, {-1, -1, -1, -1}};
  }
  __device__ __forceinline__ void fetch(const CodedHeads& heads, int first) {
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int head = first + n * groups_;
      pieces_[n] =
          head < heads.count ? reinterpret_cast<const Piece*>(heads.q + heads.row(head) * S::kDim)[lane_] : Piece{};
    }
  }

  /// Word i of heads first, first + groups_, ..., whose queries are fetched.
  __device__ __forceinline__ void store_heads(const CodedQueries<S>& queries, int first, int i, __nv_bfloat16* scratch,
                                              float score_scale) const {
    float per_unit[kAtOnce];
    __syncwarp();
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const float top = largest_product(pieces_[n]);
      per_unit[n] = top == 0 ? 0.0F : CodedQueries<S>::kLargest / top;
      if (first + n * groups_ >= S::kHeads) continue;
      if (i == 0) queries.unit(first + n * groups_) = top == 0 ? 1.0F : top / CodedQueries<S>::kLargest * score_scale;
      reinterpret_cast<Piece*>(scratch + n * S::kDim)[lane_] = pieces_[n];
    }
    __syncwarp();
    if (i >= words_) return;
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      if (first + n * groups_ >= S::kHeads) break;
      int x[4];
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const float q = __bfloat162float(scratch[n * S::kDim + max(word_.channel[byte], 0)]);
        x[byte] = __float2int_rn(q * word_.factor[byte] * per_unit[n]);  // the factor of no channel is 0
      }
      queries.store(first + n * groups_, i, x);
    }
  }

  /// The largest magnitude of a query times the largest factor of its channel, of all lanes. Magnitudes are ordered as
  /// their bits are, with what is not finite on top.
  __device__ __forceinline__ float largest_product(const Piece& piece) const {
    unsigned largest = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float q = i % 2 == 0 ? low_bf16(piece.pair[i / 2]) : high_bf16(piece.pair[i / 2]);
      largest = max(largest, __float_as_uint(fabsf(q * tops_.of[i])));
    }
    return __uint_as_float(__reduce_max_sync(kAllLanes, largest));
  }

  const CodedHeadTable* table_;
  int lane_, words_;                          // words of a head
  int group_, groups_, first_word_, stride_;  // takes heads group_, group_ + groups_, ..., words first_word_, ...
  CodedKeyWord word_;
  Tops tops_;
  Piece pieces_[kAtOnce];
};

/// Adds to sums[tile][half] the products of the queries with the pairs of operands [from, to), for kHalves times 16
/// tokens: of the tokens 16 * half + g and 16 * half + g + 8 those with the high and those with the low bytes of the
/// lane's head of key tile `tile`. operands, queries: where the pairs and the lane's words lie in shared memory.
/// load(group, offset, x) gives rows 32 * group to 32 * group + 31 of the plane at `offset`, which the table has for 32
/// rows; kUpper: whether the operands have the upper halves of bytes.
template <bool kUpper, class S, class Load, int kHalves>
__device__ __forceinline__ void multiply_keys(unsigned operands, unsigned queries, int from, int to, const Load& load,
                                              int (&sums)[S::kKeyTiles][kHalves][4]) {
  uint4 next = load_shared(operands + static_cast<unsigned>(from * sizeof(CodedKeyPair)));
#pragma unroll 1
  for (int i = from; i < to; ++i) {
    const uint4 pair = next;
    next = load_shared(operands + static_cast<unsigned>((i + 1) * sizeof(CodedKeyPair)));
    constexpr int kGroups = (kHalves + 1) / 2;
    unsigned x[kGroups][2][4];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      load(group, pair.z, x[group][0]);
      load(group, pair.w, x[group][1]);
      if constexpr (kUpper) {
#pragma unroll
        for (auto& words : x[group]) {
#pragma unroll
          for (unsigned& word : words) word >>= 4;
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < S::kKeyTiles; ++tile) {
      const uint2 q = load_shared_pair(queries + i * CodedQueries<S>::kPairBytes + tile * CodedQueries<S>::kTileBytes);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const unsigned(&first)[4] = x[half / 2][0], (&second)[4] = x[half / 2][1];
        const int at = half % 2 * 2;
        mma_bytes<true>(sums[tile][half], first[at] & pair.x, first[at + 1] & pair.x, second[at] & pair.y,
                        second[at + 1] & pair.y, q.x, q.y);
      }
    }
  }
}

}  // namespace oscar::cuda
