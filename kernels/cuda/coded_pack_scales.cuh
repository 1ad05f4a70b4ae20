// SPDX-License-Identifier: MIT
// The scale bytes of a row for oscar_coded_pack(). Sums are taken in any order, with fused operations; where a byte
// could then be another than the reference's, the row is computed again as the reference does (CodedExactRow).
#pragma once

#include "kernels/cuda/coded_pack_table.hpp"
#include "kernels/cuda/coded_pack_tile.cuh"

namespace oscar::cuda {

/// The scale byte nearest to `scale`, and whether that could be wrong by a relative error of `margin` of the scale.
struct ScaleByte {
  int byte;
  bool doubtful;

  __device__ __forceinline__ ScaleByte(const CodedPackScales& scales, float scale, float margin) {
    const float place = floorf(16 * fast_log2(scale) + 128.5F);
    byte = static_cast<int>(fminf(fmaxf(place, 0.0F), 255.0F));
    const bool above = byte == 0 || scale * (1 - margin) >= scales.least[byte];
    const bool below = byte == 255 || scale * (1 + margin) < scales.least[byte + 1];
    doubtful = !(above && below && scale < INFINITY);
  }
};

/// Sums over the lanes that share tokens, of the lane's eight tokens: this lane gets that of token_of() it.
__device__ __forceinline__ float sum_of_own(float (&x)[kLaneTokens]) {
  const unsigned g = threadIdx.x % kLanes / 4;
#pragma unroll
  for (int half = 4; half > 0; half /= 2) {
    const bool upper = (g & static_cast<unsigned>(half)) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float sent = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
      x[i] = kept + __shfl_xor_sync(kQuadLanes, sent, 4 * half);
    }
  }
  return x[0];
}
/// The token whose scales a lane computes.
__device__ __forceinline__ int token_of(int lane) { return lane % 4 * 2 + lane / 4 % 2 + lane / 8 * 8; }
/// What the owners of the lane's tokens have.
__device__ __forceinline__ void of_owners(float own, float (&out)[kLaneTokens]) {
#pragma unroll
  for (int i = 0; i < kLaneTokens; ++i) out[i] = __shfl_sync(kQuadLanes, own, 4 * i + threadIdx.x % 4);
}

/// What makes <y, gain y^> = <y, y>, held to 1/2 ... 2.
__device__ __forceinline__ float gain_of(float energy, float shared) {
  if (!(energy > 0.0F)) return 1.0F;
  const float gain = energy / shared;
  if (isnan(gain)) return 1.0F;  // both sums are beyond float32
  return shared > 0.0F ? fminf(fmaxf(gain, 0.5F), 2.0F) : 2.0F;
}

/// The row of one token with the operations and the order of kernels/reference/coded_row.cpp, by a warp.
template <int kDim, bool kRotated>
class CodedExactRow {
 public:
  __device__ CodedExactRow(const CodedTile<kDim>& tile, const CodedPackSide& side, const CodedPackScales& scales,
                           int token)
      : tile_(tile), side_(side), scales_(scales), token_(token) {}

  /// The byte of the channels of the blocks [begin, end).
  [[nodiscard]] __device__ int class_byte(int begin, int end) const {
    if (begin == end) return 0;
    const float sum = ordered_sum([&](int i) {
      if (i < 8 * begin || i >= 8 * end) return 0.0F;
      const float ratio = value(i) * side_.channel[i].inverse_sigma;
      return ratio * ratio;
    });
    return byte_of(sqrtf(sum / static_cast<float>(8 * (end - begin))));
  }
  [[nodiscard]] __device__ float gain(int wide_byte, int narrow_byte) const {
    const int stored = 8 * side_.stored;
    const float energy = ordered_sum([&](int i) { return i < stored ? value(i) * value(i) : 0.0F; });
    const float shared = ordered_sum([&](int i) {
      if (i >= stored) return 0.0F;
      const int byte = i < 8 * side_.wide ? wide_byte : narrow_byte;
      const float levels = side_.levels[i / 8];
      const float place = __saturatef(value(i) * side_.channel[i].inverse_step * scales_.inverse[byte] + 0.5F) * levels;
      const float code = fminf(floorf(place), levels - 1);
      return value(i) * ((code - 0.5F * (levels - 1)) * side_.channel[i].step * scales_.scale[byte]);
    });
    return gain_of(energy, shared);
  }
  /// The last byte whose least scale is not above; 0 for what is no number.
  [[nodiscard]] __device__ int byte_of(float scale) const {
    int low = 0;
    for (int step = 128; step > 0; step /= 2) {
      if (scale >= scales_.least[low + step]) low += step;
    }
    return low;
  }

 private:
  [[nodiscard]] __device__ float value(int channel) const { return tile_.template value<kRotated>(token_, channel); }

  template <class Term>
  [[nodiscard]] __device__ float ordered_sum(const Term& term) const {
    float sum = 0.0F;
    for (int i = static_cast<int>(threadIdx.x) % kLanes; i < kDim; i += kLanes) sum += term(i);
    for (int half = kLanes / 2; half > 0; half /= 2) sum += __shfl_down_sync(kQuadLanes, sum, half);
    return __shfl_sync(kQuadLanes, sum, 0);
  }

  const CodedTile<kDim>& tile_;
  const CodedPackSide& side_;
  const CodedPackScales& scales_;
  int token_;
};

}  // namespace oscar::cuda
