// SPDX-License-Identifier: MIT
// Grid::kLeastSquares of 16 rows for oscar_int2_pack(), in float32: the equations stand in kernels/README.md.
#pragma once

#include "kernels/cuda/int2_pack_row.cuh"

namespace oscar::cuda {

/// Both rows' sums of a product with themselves or with other rows: the diagonal, in all lanes of a row. first, second:
/// products with rows 0 to 7 and with rows 8 to 15.
__device__ __forceinline__ void take_diagonal(const float (&first)[4], const float (&second)[4], float (&sums)[2]) {
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  sums[0] = __shfl_sync(kQuadLanes, g % 2 == 0 ? first[0] : first[1], g / 2, 4);
  sums[1] = __shfl_sync(kQuadLanes, g % 2 == 0 ? second[2] : second[3], g / 2, 4);
}

/// Least-squares grids of one group of both rows, as kernels/README.md has them, but in float32.
template <int kDim, int kGroups>
class FloatLeastSquares {
 public:
  __device__ __forceinline__ FloatLeastSquares(const RowPair<kDim>& rows, int group, float start_step)
      : rows_(rows), first_(group * kPairs) {
    moments();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float variance = fmaxf(energy_[r] / kSize - mean_[r] * mean_[r], 0);
      scale_[r] = sqrtf(variance) * start_step + 1e-8F;
      low_[r] = mean_[r] - 1.5F * scale_[r];
    }
  }

  /// The grid of row g for lanes 0 and 1 of a quad, of row g + 8 for the others; the codes of both.
  __device__ __forceinline__ void encode(GroupGrid& grid, PackedCodes<kDim> (&codes)[2]) {
    constexpr int kRefits = 3;
    Sums sums;
#pragma unroll 1
    for (int refit = 0; refit < kRefits; ++refit) {
      add_up(sums, [](int, int, __nv_bfloat162) {});
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float code_mean = sums.codes[r] / kSize, spread = sums.squares[r] - sums.codes[r] * code_mean;
        const float covariance = spread == 0 ? 0.0F : sums.products[r] - mean_[r] * sums.codes[r];
        scale_[r] = fmaxf(__fdividef(covariance, fmaxf(spread, 1e-6F)), 1e-8F);
        low_[r] = mean_[r] - scale_[r] * code_mean;
      }
    }
    add_up(sums, [&](int r, int pair, __nv_bfloat162 code) { codes[r].add(pair, code); });
    const bool first = threadIdx.x % 4 < 2;
    const float scale = first ? scale_[0] : scale_[1], low = first ? low_[0] : low_[1];
    const float mean = first ? mean_[0] : mean_[1], energy = first ? energy_[0] : energy_[1];
    const float projection = scale * (first ? sums.products[0] : sums.products[1]) + low * (kSize * mean);
    grid = {scale * (energy / fmaxf(projection, 1e-9F)), -low / scale};
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
    mean_[0] = sum[0] / kSize, mean_[1] = sum[2] / kSize;
    take_diagonal(square[0], square[1], energy_);
  }

  /// Of codes, of their squares, and of codes times values.
  struct Sums {
    float codes[2], squares[2], products[2];
  };

  /// take(row, pair, codes) for all pairs.
  template <class Take>
  __device__ __forceinline__ void add_up(Sums& sums, const Take& take) const {
    unsigned least[2][3];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        const unsigned raised = raised_to_bf16(fmaf(scale_[r], static_cast<float>(i) + 0.5F, low_[r]));
        least[r][i] = __byte_perm(raised, raised, 0x3232);
      }
    }
    float sum[4] = {}, square[2][4] = {}, product[2][4] = {};
#pragma unroll
    for (int i = first_; i < first_ + kPairs; i += 2) {
      unsigned code[2][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const __nv_bfloat162 codes = codes_of(rows_.pairs[r][i + n], least[r]);
          take(r, i + n, codes);
          code[r][n] = bits_of(codes);
        }
      }
      mma<Half::kBfloat16>(sum, code[0][0], code[1][0], code[0][1], code[1][1], kOnes, kOnes);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        mma<Half::kBfloat16>(square[r], code[0][0], code[1][0], code[0][1], code[1][1], code[r][0], code[r][1]);
        mma<Half::kBfloat16>(product[r], code[0][0], code[1][0], code[0][1], code[1][1], rows_.pairs[r][i],
                             rows_.pairs[r][i + 1]);
      }
    }
    sums.codes[0] = sum[0], sums.codes[1] = sum[2];
    take_diagonal(square[0], square[1], sums.squares);
    take_diagonal(product[0], product[1], sums.products);
  }

  const RowPair<kDim>& rows_;
  int first_;
  float mean_[2], energy_[2], scale_[2], low_[2];
};

}  // namespace oscar::cuda
