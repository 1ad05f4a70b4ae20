// SPDX-License-Identifier: MIT
// How oscar_coded_pack() comes by its rows: copies to shared memory.
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

/// 32 rows of a warp, in pieces of 16 bytes.
template <int kDim>
class CodedTile {
 public:
  static constexpr int kBytes = kCodedPackTokens * 2 * kDim;

  /// shared: kBytes in shared memory, aligned as a row.
  __device__ CodedTile(const oscar_coded_rows& rows, int head, unsigned char* shared)
      : rows_(rows), shared_(shared), target_(static_cast<unsigned>(__cvta_generic_to_shared(shared))) {
    from_ = moved(rows.x, rows.x_head_stride, head) + lane() % kPieces * 16;
  }

  /// The place of a channel.
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

  /// The block's channel of this lane.
  [[nodiscard]] __device__ __forceinline__ LaneValues values(int block) const {
    LaneValues out;
    load_matrices<true>(target_ + place<kDim>(lane(), static_cast<unsigned>(block)), out.pairs);
    return out;
  }

  /// One value.
  [[nodiscard]] __device__ float value(int token, int channel) const {
    const unsigned char* const at = this->at(static_cast<unsigned>(token), static_cast<unsigned>(channel));
    return __uint_as_float(static_cast<unsigned>(*reinterpret_cast<const unsigned short*>(at)) << 16);
  }

 private:
  static constexpr unsigned kPieces = kDim / 8;  // of a row
  static constexpr unsigned kRowsAtOnce = kWarp / kPieces;
  static_assert(kPieces <= kWarp);

  __device__ static __forceinline__ unsigned lane() { return threadIdx.x % kWarp; }
  const oscar_coded_rows& rows_;
  const unsigned char* from_;
  unsigned char* shared_;
  unsigned target_;  // shared_
};

}  // namespace oscar::cuda
