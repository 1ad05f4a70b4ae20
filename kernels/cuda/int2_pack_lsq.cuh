// SPDX-License-Identifier: MIT
// Grid::kLeastSquares of 16 rows for oscar_int2_pack(), in float32: the equations stand in kernels/README.md.
#pragma once

#include "kernels/cuda/int2_pack_row.cuh"

namespace oscar::cuda {

/// Lanes 0 and 1 of a quad work for row g, lanes 2 and 3 for row g + 8.
__device__ __forceinline__ float own_of(float first, float second) { return threadIdx.x % 4 < 2 ? first : second; }

/// The own row's sum of its products with itself or with another row: on the diagonal. first, second: products with
/// rows 0 to 7 and with rows 8 to 15.
__device__ __forceinline__ float own_of_diagonal(const float (&first)[4], const float (&second)[4]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  return own_of(__shfl_sync(kQuadLanes, g % 2 == 0 ? first[0] : first[1], g / 2, 4),
                __shfl_sync(kQuadLanes, g % 2 == 0 ? second[2] : second[3], g / 2, 4));
}

/// Least-squares grids of one group of both rows, as kernels/README.md has them, but in float32.
template <int kDim, int kGroups>
class FloatLeastSquares {
 public:
  __device__ __forceinline__ FloatLeastSquares(const RowPair<kDim>& rows, int group, float start_step)
      : rows_(rows), first_(group * kPairs) {
    moments();
    const float variance = fmaxf(energy_ / kSize - mean_ * mean_, 0);
    scale_ = sqrtf(variance) * start_step + 1e-8F;
    low_ = mean_ - 1.5F * scale_;
  }

  /// The own row's grid; the codes of both.
  __device__ __forceinline__ void encode(GroupGrid& grid, PackedCodes<kDim> (&codes)[2]) {
    constexpr int kRefits = 3;
#pragma unroll 1
    for (int refit = 0; refit < kRefits; ++refit) {
      const Sums sums = add_up<true>([](int, int, __nv_bfloat162) {});
      const float code_mean = sums.codes / kSize, spread = sums.squares - sums.codes * code_mean;
      const float covariance = spread == 0 ? 0.0F : sums.products - mean_ * sums.codes;
      scale_ = fmaxf(__fdividef(covariance, fmaxf(spread, 1e-6F)), 1e-8F);
      low_ = mean_ - scale_ * code_mean;
    }
    const Sums sums = add_up<false>([&](int r, int pair, __nv_bfloat162 code) { codes[r].add(pair, code); });
    const float projection = scale_ * sums.products + low_ * (kSize * mean_);
    grid = {scale_ * (energy_ / fmaxf(projection, 1e-9F)), -low_ / scale_};
  }

 private:
  static constexpr int kPairs = Layout<kDim>::kPairs / kGroups;
  static constexpr float kSize = static_cast<float>(kDim / kGroups);

  /// mean_ and energy_, the sum of squares.
  __device__ __forceinline__ void moments() {
    float sum[4] = {}, square[2][4] = {};
#pragma unroll
    for (int i = first_; i < first_ + kPairs; i += 2) {
      const auto& [a, b] = rows_.pairs;
      mma<Half::kBfloat16>(sum, a[i], b[i], a[i + 1], b[i + 1], kOnes, kOnes);
      mma<Half::kBfloat16>(square[0], a[i], b[i], a[i + 1], b[i + 1], a[i], a[i + 1]);
      mma<Half::kBfloat16>(square[1], a[i], b[i], a[i + 1], b[i + 1], b[i], b[i + 1]);
    }
    mean_ = own_of(sum[0], sum[2]) / kSize;
    energy_ = own_of_diagonal(square[0], square[1]);
  }

  /// Sums over a lane's own row: codes, their squares, and codes times values.
  struct Sums {
    float codes, squares, products;
  };

  /// The least values (bfloat16, twice) for codes 1, 2 and 3 of both rows.
  __device__ __forceinline__ void thresholds(unsigned (&least)[2][3]) const {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const unsigned raised = raised_to_bf16(fmaf(scale_, static_cast<float>(i) + 0.5F, low_));
      const unsigned own = __byte_perm(raised, raised, 0x3232);
      least[0][i] = __shfl_sync(kQuadLanes, own, 0, 4);
      least[1][i] = __shfl_sync(kQuadLanes, own, 2, 4);
    }
  }

  /// take(row, pair, codes) for all pairs. Without kCounts: only the products.
  template <bool kCounts, class Take>
  __device__ __forceinline__ Sums add_up(const Take& take) const {
    unsigned least[2][3];
    thresholds(least);
    float sum[4] = {}, above_1[4] = {}, above_2[4] = {}, product[2][4] = {};
#pragma unroll
    for (int i = first_; i < first_ + kPairs; i += 2) {
      unsigned code[2][2], two_steps[2][2], third_step[2][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const __nv_bfloat162 x = as_bf162(rows_.pairs[r][i + n]);
          const __nv_bfloat162 third = __hge2(x, as_bf162(least[r][2]));
          const __nv_bfloat162 steps = __hadd2(__hge2(x, as_bf162(least[r][1])), third);
          const __nv_bfloat162 codes = __hadd2(__hge2(x, as_bf162(least[r][0])), steps);
          take(r, i + n, codes);
          code[r][n] = bits_of(codes), two_steps[r][n] = bits_of(steps), third_step[r][n] = bits_of(third);
        }
      }
      const auto add = [](float(&to)[4], const unsigned(&a)[2][2], unsigned b, unsigned c) {
        mma<Half::kBfloat16>(to, a[0][0], a[1][0], a[0][1], a[1][1], b, c);
      };
      if constexpr (kCounts) {
        add(sum, code, kOnes, kOnes);
        add(above_1, two_steps, kOnes, kOnes);
        add(above_2, third_step, kOnes, kOnes);
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) add(product[r], code, rows_.pairs[r][i], rows_.pairs[r][i + 1]);
    }
    // 1, 4, 9 = 1, 2, 3 + twice the codes' second and third steps + twice the third.
    const float codes = own_of(sum[0], sum[2]);
    const float squares = codes + 2 * (own_of(above_1[0], above_1[2]) + own_of(above_2[0], above_2[2]));
    return {codes, squares, own_of_diagonal(product[0], product[1])};
  }

  const RowPair<kDim>& rows_;
  int first_;
  float mean_, energy_, scale_, low_;  // of the own row
};

}  // namespace oscar::cuda
