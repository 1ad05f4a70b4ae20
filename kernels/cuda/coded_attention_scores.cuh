// SPDX-License-Identifier: MIT
// The scores of one warp of the coded decode kernel: 32 or 64 tokens at a time. What lanes have is laid out as
// int2_decode_warp.cuh says.
#pragma once

#include "kernels/cuda/coded_attention_copies.cuh"
#include "kernels/cuda/coded_attention_queries.cuh"

namespace oscar::cuda {

template <class S>
class CodedScores {
 public:
  using Copies = CodedCopies<S>;
  static constexpr int kStep = Copies::kStep;

  /// scales: an address in shared memory, of 16 bytes a token of a step for this warp's scales as float32.
  __device__ explicit CodedScores(unsigned scales)
      : lane_(static_cast<int>(threadIdx.x) % kWarp), scales_(kept(scales + static_cast<unsigned>(lane_ / 4 * 16))) {}

  /// Takes what keys are multiplied with, and by which operands; both are in shared memory.
  __device__ __forceinline__ void take(const CodedQueries<S>& queries, const CodedOperands<S>& operands) {
    keys_ = static_cast<unsigned>(__cvta_generic_to_shared(operands.key));
    queries_ = kept(queries.pairs(lane_));
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      end_[c][0] = uniform(operands.pairs.key_end[c][0]), end_[c][1] = uniform(operands.pairs.key_end[c][1]);
    }
    find_middles(queries);
  }

  /// Returns the two scales of one side of token 16 * half + g + 8 * row of this warp; a token has four: keys wide,
  /// keys narrow, values wide, values narrow.
  __device__ __forceinline__ float2 scales(int half, int row, int side) const {
    const uint2 x = load_shared_pair(scales_ + 16 * (16 * half + 8 * row) + 8 * side);
    return {__uint_as_float(x.x), __uint_as_float(x.y)};
  }
  /// What a unit of a score of the lane's head of key tile i is worth.
  __device__ __forceinline__ float unit(int i) const { return unit_[i]; }

  /// Scores over unit() of the warp's tokens, whose copies are at `stage`, with their bytes of scales `scale_bytes`
  /// behind it; only the first `valid` count.
  __device__ __forceinline__ void find(unsigned stage, unsigned scale_bytes, int valid,
                                       float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    const unsigned rows = kept(stage + 16 * lane_);  // the lane's row in plane 0
    share_scales(stage + scale_bytes);
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      scores[n / (2 * S::kHalves)][n / 2 % S::kHalves][n % 2] = 0;
    }
#pragma unroll
    for (int from = 0; from < S::kHalves; from += kAtOnce) {
      add_products(kWideClass, rows, from, scores);
      add_products(kNarrowClass, rows, from, scores);
    }
    if (valid >= kStep) return;
#pragma unroll
    for (int n = 0; n < 2 * S::kHalves * S::kKeyTiles; ++n) {
      const int i = n / (2 * S::kHalves), half = n / 2 % S::kHalves, row = n % 2;
      if (16 * half + lane_ / 4 + 8 * row >= valid) scores[i][half][row] = -INFINITY;
    }
  }

 private:
  static constexpr int kAtOnce = S::kKeyTiles <= 2 ? S::kHalves : 2;  // halves whose products fit registers

  /// Adds the products of a class with kAtOnce halves, from half `from` on, to their scores.
  __device__ __forceinline__ void add_products(int of_class, unsigned rows, int from,
                                               float (&scores)[S::kKeyTiles][S::kHalves][2]) const {
    if (begin_of(of_class) == end_[of_class][1]) return;
    const auto load = [&](int group, unsigned offset, unsigned(&x)[4]) {
      load_matrices<false>(rows + Copies::kPlaneFactor * offset + 512 * (from / 2 + group), x);
    };
    int sums[S::kKeyTiles][kAtOnce][4];
#pragma unroll
    for (int n = 0; n < kAtOnce * S::kKeyTiles; ++n) {
      int(&sum)[4] = sums[n / kAtOnce][n % kAtOnce];
      sum[0] = sum[2] = 0, sum[1] = sum[3] = -middle_[of_class][n / kAtOnce];
    }
    multiply(of_class, load, sums);
#pragma unroll
    for (int n = 0; n < 2 * kAtOnce; ++n) {
      const int half = n / 2, row = n % 2;
      const float2 s = scales(from + half, row, 0);
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) {
        // What wraps around on the way comes back: the result is less than 2^31.
        const int(&sum)[4] = sums[i][half];
        const unsigned product = 256U * static_cast<unsigned>(sum[2 * row]) + static_cast<unsigned>(sum[2 * row + 1]);
        scores[i][from + half][row] +=
            (of_class == kWideClass ? s.x : s.y) * static_cast<float>(static_cast<int>(product));
      }
    }
  }

  /// Where the pairs of a class begin.
  [[nodiscard]] __device__ __forceinline__ int begin_of(int of_class) const {
    return of_class == kWideClass ? 0 : end_[kWideClass][1];
  }

  /// multiply_keys() of all operands of a class.
  template <class Load>
  __device__ __forceinline__ void multiply(int of_class, const Load& load,
                                           int (&sums)[S::kKeyTiles][kAtOnce][4]) const {
    const int* const end = end_[of_class];
    multiply_keys<false, S>(keys_, queries_, begin_of(of_class), end[0], load, sums);
    multiply_keys<true, S>(keys_, queries_, end[0], end[1], load, sums);
  }

  /// Products with the middle of all codes, which are to be subtracted from others.
  __device__ __forceinline__ void find_middles(const CodedQueries<S>& queries) {
    const auto ones = [](int, unsigned, unsigned(&x)[4]) { x[0] = x[1] = x[2] = x[3] = 0xffffffffU; };
#pragma unroll
    for (const int c : {kWideClass, kNarrowClass}) {
      int sums[S::kKeyTiles][kAtOnce][4] = {};
      multiply(c, ones, sums);
#pragma unroll
      for (int i = 0; i < S::kKeyTiles; ++i) middle_[c][i] = 128 * sums[i][0][0] + sums[i][0][1] / 2;
    }
#pragma unroll
    for (int i = 0; i < S::kKeyTiles; ++i) unit_[i] = queries.unit(4 * i + lane_ % 4);
  }

  /// 2^(byte / 16 - 8) of a token's four bytes: 0x4b0000XX is 2^23 + XX as float32.
  __device__ __forceinline__ void share_scales(unsigned bytes) const {
    unsigned own_bytes[Copies::kPlaneFactor];
#pragma unroll
    for (int i = 0; i < Copies::kPlaneFactor; ++i) {
      own_bytes[i] = load_shared_word(bytes + 128 * i + 4 * lane_);
    }
    const unsigned to = scales_ + 16 * (lane_ - lane_ / 4);
#pragma unroll
    for (int i = 0; i < Copies::kPlaneFactor; ++i) {
      const auto scale = [&](int byte) {
        const unsigned bits = __byte_perm(own_bytes[i], 0x4b000000U, 0x7540 + byte);
        return fast_exp2(__fmaf_rn(__uint_as_float(bits), 0.0625F, -524296.0F));
      };
      store_shared(to + 512 * i, {scale(0), scale(1), scale(2), scale(3)});
    }
    __syncwarp();
  }

  int lane_;
  unsigned scales_, keys_, queries_;  // where they lie in shared memory
  int end_[2][2];                     // of the pairs of keys, as in the table
  int middle_[2][S::kKeyTiles];       // of products, by class
  float unit_[S::kKeyTiles];
};

}  // namespace oscar::cuda
