// SPDX-License-Identifier: MIT
// The rows of oscar_coded_pack() in shared memory: 32 tokens of a head and side are a warp's. Lane (g, t) = (l / 4, l %
// 4) has the channels g, g + 8, g + 16, ..., whose bits make string g, of tokens 2t, 2t + 1, 2t + 8, 2t + 9, ..., 2t
// + 25.
#pragma once

#include "kernels/cuda/int2_pack_tile.cuh"
#include "oscar/coded_pack.h"

namespace oscar::cuda {

inline constexpr int kCodedPackTokens = 32;  // of a warp at a time
inline constexpr int kLaneTokens = 8;

/// Returns the number of the lane's i-th token.
__device__ __forceinline__ int lane_token(int i) { return static_cast<int>(threadIdx.x) % 4 * 2 + i % 2 + i / 2 * 8; }

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
  static constexpr unsigned kRowsAtOnce = kLanes / kPieces;
  // Registers hold the rows that are multiplied: of 256 channels, half of them.
  static constexpr int kHalves = kDim == 256 ? 2 : 1, kGroups = 4 / kHalves, kSteps = kDim / 16;
  static_assert(kPieces <= kLanes);

  __device__ static __forceinline__ unsigned lane() { return threadIdx.x % kLanes; }
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

}  // namespace oscar::cuda
