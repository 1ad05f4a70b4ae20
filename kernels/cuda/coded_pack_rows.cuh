// SPDX-License-Identifier: MIT
// How oscar_coded_pack() comes by its rows: copies to shared memory, norm and rotary embedding.
#pragma once

#include "kernels/cuda/tensor_cores.cuh"
#include "kernels/cuda/warp.cuh"
#include "oscar/coded_pack.h"

namespace oscar::cuda {

// The rows of oscar_coded_pack() in shared memory: 32 tokens of a head and side are a warp's. Lane (g, t) = (l / 4, l %
// 4) has the channels g, g + 8, g + 16, ..., whose bits make string g, of tokens 2t, 2t + 1, 2t + 8, 2t + 9, ..., 2t
// + 25.

inline constexpr int kCodedPackTokens = 32;  // of a warp at a time
inline constexpr int kLaneTokens = 8;

/// Eight values of one channel, of the lane's tokens.
struct LaneValues {
  unsigned pairs[4];

  [[nodiscard]] __device__ __forceinline__ float operator[](int i) const {
    return i % 2 == 0 ? low_bf16(pairs[i / 2]) : high_bf16(pairs[i / 2]);
  }
};

/// 32 rows of a warp, in pieces of 16 bytes as they came, or channel by channel after rotate().
template <int kDim>
class CodedTile {
 public:
  static constexpr int kBytes = kCodedPackTokens * 2 * kDim;

  /// shared: kBytes in shared memory, aligned as a row.
  __device__ CodedTile(const oscar_coded_rows& rows, int head, unsigned char* shared)
      : rows_(rows), shared_(shared), target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))) {
    from_ = moved(rows.x, rows.x_head_stride, head) + lane() % kPieces * 16;
  }

  /// The place of a channel of a row that was not rotated.
  [[nodiscard]] __device__ __forceinline__ unsigned char* at(unsigned row, unsigned channel) const {
    return shared_ + place<kDim>(row, channel / 8) + channel % 8 * 2;
  }

  /// Begins to copy the rows of 32 tokens; of tokens after the last, the last again.
  __device__ __forceinline__ void copy(int first_token, int num_tokens) const {
    const int last = num_tokens - 1 - first_token;
    const unsigned char* const from = moved(from_, rows_.x_token_stride, first_token);
    const unsigned own = lane() / kPieces, piece = lane() % kPieces;
#pragma unroll
    for (unsigned i = 0; i < kCodedPackTokens; i += kRowsAtOnce) {
      const unsigned row = own + i;
      copy_async<16>(target_ + place<kDim>(row, piece),
                     moved(from, rows_.x_token_stride, min(static_cast<int>(row), last)));
    }
    commit_copies();
  }

  /// The block's channel of this lane: of rows as they came, or of rotated ones.
  template <bool kRotated>
  [[nodiscard]] __device__ __forceinline__ LaneValues values(int block) const {
    LaneValues out;
    if constexpr (kRotated) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const unsigned char* const at = rotated(half, block, static_cast<int>(lane()));
        if constexpr (kHalves == 1) {
          const uint4 x = *reinterpret_cast<const uint4*>(at);
          out.pairs[0] = x.x, out.pairs[1] = x.y, out.pairs[2] = x.z, out.pairs[3] = x.w;
        } else {
          const uint2 x = *reinterpret_cast<const uint2*>(at);
          out.pairs[2 * half] = x.x, out.pairs[2 * half + 1] = x.y;
        }
      }
    } else {
      load_matrices<true>(target_ + place<kDim>(lane(), static_cast<unsigned>(block)), out.pairs);
    }
    return out;
  }

  /// One value.
  template <bool kRotated>
  [[nodiscard]] __device__ float value(int token, int channel) const {
    const unsigned char* at = nullptr;
    if constexpr (kRotated) {
      const int half = token / (kCodedPackTokens / kHalves), group = token / 8 % (4 / kHalves);
      at = rotated(half, channel / 8, channel % 8 * 4 + token % 8 / 2) + group * 4 + token % 2 * 2;
    } else {
      at = this->at(static_cast<unsigned>(token), static_cast<unsigned>(channel));
    }
    return __uint_as_float(static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(at)) << 16);
  }

  /// Rows x become bfloat16(x R + bias). rotation: R in shared memory, by place(); bias: float32 (kDim).
  __device__ __forceinline__ void rotate(unsigned rotation, const float* bias) const {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) rotate_half(half, rotation, bias);
    __syncwarp();
  }

 private:
  static constexpr unsigned kPieces = kDim / 8;  // of a row
  static constexpr unsigned kRowsAtOnce = kWarp / kPieces;
  // Registers hold the rows that are multiplied: of 256 channels, half of them.
  static constexpr int kHalves = kDim == 256 ? 2 : 1, kGroups = 4 / kHalves, kSteps = kDim / 16;
  static_assert(kPieces <= kWarp);

  __device__ static __forceinline__ unsigned lane() { return threadIdx.x % kWarp; }
  /// Rotated rows lie where the same half of the tokens lay before.
  [[nodiscard]] __device__ __forceinline__ unsigned char* rotated(int half, int block, int lane) const {
    return shared_ + half * (kBytes / kHalves) + block * (512 / kHalves) + lane * (16 / kHalves);
  }

  /// The product has channels as rows and tokens as columns, so that a lane gets the values that it encodes.
  __device__ __forceinline__ void rotate_half(int half, unsigned rotation, const float* bias) const {
    unsigned x[kGroups][kSteps][2];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int step = 0; step < kSteps; step += 2) {
        unsigned four[4];
        const unsigned row = static_cast<unsigned>(half * 8 * kGroups + 8 * group) + lane() % 8;
        load_matrices<false>(target_ + place<kDim>(row, static_cast<unsigned>(2 * step) + lane() / 8), four);
        x[group][step][0] = four[0], x[group][step][1] = four[1];
        x[group][step + 1][0] = four[2], x[group][step + 1][1] = four[3];
      }
    }
    __syncwarp();  // all rows are in registers
    const unsigned row = lane() % 8 + lane() / 16 * 8, piece = lane() / 8 % 2;
#pragma unroll 1
    for (int slab = 0; slab < kDim / 16; ++slab) {
      const float low = bias[16 * slab + static_cast<int>(lane() / 4)],
                  high = bias[16 * slab + 8 + static_cast<int>(lane() / 4)];
      float sums[kGroups][4];
#pragma unroll
      for (auto& sum : sums) sum[0] = sum[1] = low, sum[2] = sum[3] = high;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        unsigned a[4];
        load_matrices<true>(
            rotation + place<kDim>(row + static_cast<unsigned>(16 * step), piece + static_cast<unsigned>(2 * slab)), a);
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          mma<Half::kBfloat16>(sums[group], a[0], a[1], a[2], a[3], x[group][step][0], x[group][step][1]);
        }
      }
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        unsigned* const to = reinterpret_cast<unsigned*>(rotated(half, 2 * slab + which, static_cast<int>(lane())));
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          to[group] = pack_bf16(sums[group][2 * which], sums[group][2 * which + 1]);
        }
      }
    }
  }

  const oscar_coded_rows& rows_;
  const unsigned char* from_;
  unsigned char* shared_;
  unsigned target_;  // shared_
};

// Norm and rotary embedding of keys for oscar_coded_pack(): the rows of a warp's tile, in place, with the bits of
// kernels/reference/attention.cpp (compiled without contraction).

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
        const int at = __shfl_sync(kAllLanes, position, static_cast<int>(row + i * kRowsAtOnce));
        if (turns_) load_angles(at, cosines[i], sines[i]);
      }
#pragma unroll
      for (unsigned i = 0; i < kBatch; ++i) {
        const unsigned token = row + i * kRowsAtOnce;
        auto* const first = reinterpret_cast<uint2*>(tile.at(token, first_));
        auto* const second = reinterpret_cast<uint2*>(tile.at(token, second_));
        unsigned pairs[4] = {first->x, first->y, second->x, second->y};
        if (p_.norm_weight != nullptr) {
          normalize(pairs, __shfl_sync(kAllLanes, scale, static_cast<int>(token)), weight);
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
  static constexpr unsigned kLanesOfRow = kDim / 8, kRowsAtOnce = kWarp / kLanesOfRow;
  static constexpr unsigned kBatch = 2;  // rows whose angles are loaded at once; more of them spill registers

  __device__ static __forceinline__ unsigned lane() { return threadIdx.x % kWarp; }

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
