// SPDX-License-Identifier: MIT
// Norm and rotary embedding of keys for oscar_coded_pack(): the rows of a warp's tile, in place, with the bits of
// kernels/reference/norm_rope.cpp (compiled without contraction).
#pragma once

#include "kernels/cuda/coded_pack_tile.cuh"

namespace oscar::cuda {

[[nodiscard]] __host__ __device__ inline bool is_wanted(const oscar_norm_rope& p) {
  return p.norm_weight != nullptr || p.cos_sin != nullptr || p.rows.data != nullptr;
}

/// The token's row of the table; 0 where there is none.
[[nodiscard]] __device__ __forceinline__ int position_of(const oscar_norm_rope& p, int token) {
  if (p.cos_sin == nullptr) return 0;
  return p.position_bytes == 8 ? static_cast<int>(static_cast<const long long*>(p.positions)[token])
                               : static_cast<const int*>(p.positions)[token];
}

template <class T>
[[nodiscard]] __device__ __forceinline__ T constant(const unsigned char* from) {
  return __ldg(reinterpret_cast<const T*>(from));
}

/// A lane has 4 channels from first_ on, and 4 from second_ on, of every kRowsAtOnce-th row: both of its pairs'
/// channels, or channels that have no pairs.
template <int kDim>
class NormRope {
 public:
  __device__ __forceinline__ NormRope(const oscar_norm_rope& p, int head)
      : p_(p), head_(head), half_(p.cos_sin == nullptr ? 0U : static_cast<unsigned>(p.rotary_dim) / 2) {
    const unsigned own = lane() % kLanesOfRow * 4;
    turns_ = own < half_;
    first_ = turns_ ? own : own + half_;
    second_ = turns_ ? own + half_ : first_ + (kDim / 2 - half_);
  }

  /// Finishes the rows of 32 tokens, and writes them where they are wanted. position: position_of() this lane's token,
  /// the last one if there are not so many.
  __device__ __forceinline__ void finish(const CodedTile<kDim>& tile, int first_token, int num_tokens,
                                         int position) const {
    float scale = 0;
    unsigned weight[8];
    if (p_.norm_weight != nullptr) {
      scale = inverse_root(tile);
      load_weight(weight);
      __syncwarp();  // every lane has read its row
    }
    const int left = num_tokens - first_token;
#pragma unroll 1
    for (unsigned row = lane() / kLanesOfRow; row < kCodedPackTokens; row += kBatch * kRowsAtOnce) {
      uint4 cosines[kBatch], sines[kBatch];
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        const int at = __shfl_sync(kQuadLanes, position, static_cast<int>(row + i * kRowsAtOnce));
        if (turns_) load_angles(at, cosines[i], sines[i]);
      }
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned token = row + i * kRowsAtOnce;
        auto* const first = reinterpret_cast<uint2*>(tile.at(token, first_));
        auto* const second = reinterpret_cast<uint2*>(tile.at(token, second_));
        unsigned pairs[4] = {first->x, first->y, second->x, second->y};
        if (p_.norm_weight != nullptr) {
          normalize(pairs, __shfl_sync(kQuadLanes, scale, static_cast<int>(token)), weight);
        }
        if (turns_) turn(pairs, cosines[i], sines[i]);
        *first = {pairs[0], pairs[1]}, *second = {pairs[2], pairs[3]};
        if (p_.rows.data != nullptr && static_cast<int>(token) < left) {
          write(first_token + static_cast<int>(token), pairs);
        }
      }
    }
    __syncwarp();
  }

 private:
  static constexpr unsigned kLanesOfRow = kDim / 8, kRowsAtOnce = kLanes / kLanesOfRow;
  static constexpr unsigned kBatch = 2;  // rows whose angles are loaded at once; more of them spill registers

  __device__ static __forceinline__ unsigned lane() { return threadIdx.x % kLanes; }

  /// 1 / sqrt(mean square + epsilon) of the row of this lane, in the order of strand_sum(); squares are exact.
  [[nodiscard]] __device__ __forceinline__ float inverse_root(const CodedTile<kDim>& tile) const {
    float sums[32] = {};
#pragma unroll 1
    for (unsigned channel = 0; channel < kDim; channel += 32) {
#pragma unroll
      for (unsigned i = 0; i < 32; i += 8) {
        const uint4 x = *reinterpret_cast<const uint4*>(tile.at(lane(), channel + i));
        const unsigned words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (unsigned j = 0; j < 4; ++j) {
          const float low = low_bf16(words[j]), high = high_bf16(words[j]);
          sums[i + 2 * j] = __fmaf_rn(low, low, sums[i + 2 * j]);
          sums[i + 2 * j + 1] = __fmaf_rn(high, high, sums[i + 2 * j + 1]);
        }
      }
    }
    halve<16>(sums);
    return __frsqrt_rn(sums[0] * (1.0F / kDim) + p_.norm_epsilon);
  }

  template <int kHalf>
  __device__ static __forceinline__ void halve(float (&sums)[32]) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) sums[i] += sums[i + kHalf];
    if constexpr (kHalf > 1) halve<kHalf / 2>(sums);
  }

  /// The weight of the lane's channels: float32, or bfloat16 in pairs, of which there are four.
  __device__ __forceinline__ void load_weight(unsigned (&weight)[8]) const {
    const auto* const from = static_cast<const unsigned char*>(p_.norm_weight);
    if (p_.norm_dtype == OSCAR_BFLOAT16) {
      const uint2 a = constant<uint2>(from + 2 * first_), b = constant<uint2>(from + 2 * second_);
      weight[0] = a.x, weight[1] = a.y, weight[2] = b.x, weight[3] = b.y;
    } else {
      const uint4 a = constant<uint4>(from + 4 * first_), b = constant<uint4>(from + 4 * second_);
      weight[0] = a.x, weight[1] = a.y, weight[2] = a.z, weight[3] = a.w;
      weight[4] = b.x, weight[5] = b.y, weight[6] = b.z, weight[7] = b.w;
    }
  }
  __device__ __forceinline__ void normalize(unsigned (&pairs)[4], float scale, const unsigned (&weight)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = low_bf16(pairs[i]) * scale, high = high_bf16(pairs[i]) * scale;
      pairs[i] = p_.norm_dtype == OSCAR_BFLOAT16
                     ? multiply_bf16(pack_bf16(low, high), weight[i])
                     : pack_bf16(low * __uint_as_float(weight[2 * i]), high * __uint_as_float(weight[2 * i + 1]));
    }
  }
  __device__ static __forceinline__ unsigned multiply_bf16(unsigned a, unsigned b) {
    const __nv_bfloat162 product =
        __hmul2_rn(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
    return *reinterpret_cast<const unsigned*>(&product);
  }

  /// Cosines and sines of the lane's four pairs, as the table has them.
  __device__ __forceinline__ void load_angles(int position, uint4& cosines, uint4& sines) const {
    const unsigned size = p_.cos_sin_dtype == OSCAR_BFLOAT16 ? 2 : 4;
    const unsigned char* const row = moved(p_.cos_sin, p_.rotary_dim * static_cast<int>(size), position);
    cosines = four_of(row, size), sines = four_of(row + half_ * size, size);
  }
  [[nodiscard]] __device__ __forceinline__ uint4 four_of(const unsigned char* from, unsigned size) const {
    uint4 out{};
    if (p_.interleaved == 0) {
      if (size == 4) return constant<uint4>(from + 4 * first_);
      const uint2 four = constant<uint2>(from + 2 * first_);
      out.x = four.x, out.y = four.y;
    } else {
      const unsigned char *const low = from + first_ / 2 * size, *const high = from + second_ / 2 * size;
      if (size == 4) {
        const uint2 a = constant<uint2>(low), b = constant<uint2>(high);
        return {a.x, a.y, b.x, b.y};
      }
      out.x = constant<unsigned>(low), out.y = constant<unsigned>(high);
    }
    return out;
  }
  [[nodiscard]] __device__ __forceinline__ float4 values_of(const uint4& four) const {
    if (p_.cos_sin_dtype == OSCAR_BFLOAT16) {
      return {low_bf16(four.x), high_bf16(four.x), low_bf16(four.y), high_bf16(four.y)};
    }
    return {__uint_as_float(four.x), __uint_as_float(four.y), __uint_as_float(four.z), __uint_as_float(four.w)};
  }

  /// pairs: neighbouring channels, two from first_ on, two from second_ on.
  __device__ __forceinline__ void turn(unsigned (&pairs)[4], const uint4& cosines, const uint4& sines) const {
    const float4 c = values_of(cosines), s = values_of(sines);
    if (p_.interleaved != 0) part(pairs);  // from here on the first two hold those that come first in their pairs
    const unsigned a[2] = {pairs[0], pairs[1]}, b[2] = {pairs[2], pairs[3]};
    pairs[0] = pack_bf16(low_bf16(a[0]) * c.x - low_bf16(b[0]) * s.x, high_bf16(a[0]) * c.y - high_bf16(b[0]) * s.y);
    pairs[1] = pack_bf16(low_bf16(a[1]) * c.z - low_bf16(b[1]) * s.z, high_bf16(a[1]) * c.w - high_bf16(b[1]) * s.w);
    pairs[2] = pack_bf16(low_bf16(b[0]) * c.x + low_bf16(a[0]) * s.x, high_bf16(b[0]) * c.y + high_bf16(a[0]) * s.y);
    pairs[3] = pack_bf16(low_bf16(b[1]) * c.z + low_bf16(a[1]) * s.z, high_bf16(b[1]) * c.w + high_bf16(a[1]) * s.w);
    if (p_.interleaved != 0) join(pairs);
  }
  __device__ static __forceinline__ void part(unsigned (&x)[4]) {
    const unsigned first[2] = {__byte_perm(x[0], x[1], 0x5410), __byte_perm(x[2], x[3], 0x5410)};
    const unsigned second[2] = {__byte_perm(x[0], x[1], 0x7632), __byte_perm(x[2], x[3], 0x7632)};
    x[0] = first[0], x[1] = first[1], x[2] = second[0], x[3] = second[1];
  }
  __device__ static __forceinline__ void join(unsigned (&x)[4]) {
    const unsigned low[2] = {__byte_perm(x[0], x[2], 0x5410), __byte_perm(x[0], x[2], 0x7632)};
    const unsigned high[2] = {__byte_perm(x[1], x[3], 0x5410), __byte_perm(x[1], x[3], 0x7632)};
    x[0] = low[0], x[1] = low[1], x[2] = high[0], x[3] = high[1];
  }

  __device__ __forceinline__ void write(int token, const unsigned (&pairs)[4]) const {
    const unsigned char* const of_head = moved(p_.rows.data, p_.rows.head_stride, head_);
    auto* const to = const_cast<unsigned char*>(moved(of_head, p_.rows.token_stride, token));
    *reinterpret_cast<uint2*>(to + 2 * first_) = {pairs[0], pairs[1]};
    *reinterpret_cast<uint2*>(to + 2 * second_) = {pairs[2], pairs[3]};
  }

  const oscar_norm_rope& p_;
  int head_;
  unsigned half_, first_, second_;  // half_: pairs of a row
  bool turns_;
};

}  // namespace oscar::cuda
