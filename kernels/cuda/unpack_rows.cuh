// SPDX-License-Identifier: MIT
// What the kernels that turn packed rows into bfloat16 rows have in common. A thread has eight neighbouring channels of
// a row, 16 bytes of what is written; the threads of a block take the same channels of kRows rows at a time.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/int2_arguments.hpp"
#include "kernels/cuda/int2_launch.cuh"

namespace oscar::cuda {

inline constexpr int kUnpackThreads = 256, kUnpackRows = 4;  // rows that a thread has on their way at once
inline constexpr unsigned kWholeNumber = 0x4b000000;  // with a whole number below 2^23 in its low bits: 2^23 + number
inline constexpr float kWholeBase = 8388608.0F;       // 2^23

template <int kDim>
struct UnpackTile {
  static constexpr int kLanes = kDim / 8;                // of a row
  static constexpr int kRows = kUnpackThreads / kLanes;  // at a time
  static constexpr int kTokens = kRows * kUnpackRows;    // of a block

  /// The thread's channels [8 block(), 8 block() + 8).
  [[nodiscard]] __device__ static int block() { return static_cast<int>(threadIdx.x) % kLanes; }
  /// Token `i` of the thread's kUnpackRows tokens of the tile that begins at `first`.
  [[nodiscard]] __device__ static int token(int first, int i) {
    return first + i * kRows + static_cast<int>(threadIdx.x) / kLanes;
  }
  /// Their slots; negative ones are not to be read.
  __device__ static void slots_of(const std::int32_t* slots, int first, int num_tokens, int (&found)[kUnpackRows]) {
#pragma unroll
    for (int i = 0; i < kUnpackRows; ++i) found[i] = token(first, i) < num_tokens ? slots[token(first, i)] : -1;
  }
};

/// Rounds to bfloat16 and writes the thread's channels of a row of `to`.
template <int kDim>
__device__ __forceinline__ void store_row(const oscar_bf16_rows& to, int token, int head, const float (&values)[8]) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
    words[i] = reinterpret_cast<const unsigned&>(pair);
  }
  auto* const row = static_cast<unsigned char*>(to.data) + token * to.token_stride + head * to.head_stride;
  reinterpret_cast<uint4*>(row)[UnpackTile<kDim>::block()] = make_uint4(words[0], words[1], words[2], words[3]);
}

/// Blocks of a launch for each of `parts` parts (heads, sides) of so many tokens: no more than the chip holds at once.
template <int kDim>
unsigned unpack_blocks(int num_tokens, int parts) {
  constexpr int kBlocks = 8 * 132;  // on an H100
  const int tiles = (num_tokens + UnpackTile<kDim>::kTokens - 1) / UnpackTile<kDim>::kTokens;
  const int most = kBlocks / parts > 1 ? kBlocks / parts : 1;
  return static_cast<unsigned>(tiles < most ? tiles : most);
}

}  // namespace oscar::cuda
