// SPDX-License-Identifier: MIT
// One warp's share of X^T X, by tensor cores.
#pragma once

#include "kernels/cuda/int2_mma.cuh"

namespace oscar::cuda {

inline constexpr int kTile = 16;

/// 16 rows of 16 channels, transposed, as operand: as the left one whole, as the right one 0 and 2 are its first 8
/// columns, 1 and 3 its last.
struct Operand {
  unsigned of[4];
};

__device__ __forceinline__ Operand operand_at(const std::uint16_t* x, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto* row = x + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8;
  Operand out;
  load_matrices<true>(static_cast<unsigned>(__cvta_generic_to_shared(row)), out.of);
  return out;
}

/// A sum of float32 numbers with twice their digits (Kahan): four additions, where fp64 would convert each at a
/// sixteenth of their rate.
class LongSum {
 public:
  __device__ __forceinline__ void add(float x) {
    const float corrected = x - excess_, sum = sum_ + corrected;
    excess_ = (sum - sum_) - corrected;
    sum_ = sum;
  }
  [[nodiscard]] __device__ __forceinline__ double value() const {
    return static_cast<double>(sum_) - static_cast<double>(excess_);
  }

 private:
  float sum_ = 0, excess_ = 0;
};

/// Adds as atomicAdd() does in global memory, of which the compiler does not always see that it is that.
__device__ __forceinline__ void add_to(double* sum, double x) {
  asm volatile("red.global.add.f64 [%0], %1;\n" ::"l"(__cvta_generic_to_global(sum)), "d"(x) : "memory");
}

/// Tiles (2 row + i, 2 column + j) of the upper triangle, where they exist and lie in it.
template <Half kType>
class Square {
 public:
  /// keys: sums of the rows, too.
  __device__ Square(int number, int dim, bool keys) : tiles_(dim / kTile) {
    const int n = (tiles_ + 1) / 2;
    for (; row_ < n && number >= n - row_; ++row_) number -= n - row_;
    column_ = row_ + number;
    keys_ = keys && row_ == column_;
  }

  /// x: (kRows, dim) with rows `stride` apart, in shared memory. Summed in fp32 by themselves.
  template <int kRows>
  __device__ __forceinline__ void add(const std::uint16_t* x, int stride) {
    if (2 * row_ >= tiles_) return;
    row_ == column_ ? add_tiles<kRows, true>(x, stride) : add_tiles<kRows, false>(x, stride);
  }

  /// sums (dim, dim) and key_sums (dim): the layer's.
  __device__ __forceinline__ void add_to_layer(double* sums, int dim, double factor, double* key_sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (2 * row_ + i >= tiles_) continue;
      const int row = (2 * row_ + i) * kTile + lane / 4;
#pragma unroll
      for (int e = 0; e < 16; ++e) {
        const int tile = 2 * column_ + e / 8, half = e / 4 % 2, r = row + e % 4 / 2 * 8;
        const int c = tile * kTile + half * 8 + lane % 4 * 2 + e % 2;
        if (tile < tiles_ && r <= c) add_to(sums + r * dim + c, factor * sums_[i][e].value());
      }
      if (!keys_ || lane % 4 != 0) continue;  // columns of a product with ones are all the same
      add_to(key_sums + row, key_sums_[i][0].value());
      add_to(key_sums + row + 8, key_sums_[i][1].value());
    }
  }

 private:
  static constexpr unsigned kOnes = kType == Half::kBfloat16 ? 0x3f803f80U : 0x3c003c00U;

  /// The first channel of a tile; of the last one, where there is none.
  [[nodiscard]] __device__ int place(int pair, int i) const { return min(2 * pair + i, tiles_ - 1) * kTile; }

  template <int kRows, bool kDiagonal>
  __device__ __forceinline__ void add_tiles(const std::uint16_t* x, int stride) {
    float part[2][2][2][4] = {}, key_part[2][4] = {};
    const int rows[2] = {place(row_, 0), place(row_, 1)}, columns[2] = {place(column_, 0), place(column_, 1)};
#pragma unroll
    for (int k = 0; k < kRows; k += kTile) {
      const Operand left[2] = {operand_at(x + k * stride + rows[0], stride),
                               operand_at(x + k * stride + rows[1], stride)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Operand right = kDiagonal ? left[j] : operand_at(x + k * stride + columns[j], stride);
#pragma unroll
        for (int i = 0; i < (kDiagonal ? j + 1 : 2); ++i) multiply(left[i], right, part[i][j]);
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const auto& [a, b, c, d] = left[i].of;
        if (kDiagonal && keys_) mma<kType>(key_part[i], a, b, c, d, kOnes, kOnes);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = kDiagonal ? 8 * i : 0; e < 16; ++e) sums_[i][e].add(part[i][e / 8][e / 4 % 2][e % 4]);
      if (kDiagonal && keys_) key_sums_[i][0].add(key_part[i][0]), key_sums_[i][1].add(key_part[i][2]);
    }
  }

  __device__ __forceinline__ static void multiply(const Operand& a, const Operand& b, float (&c)[2][4]) {
    mma<kType>(c[0], a.of[0], a.of[1], a.of[2], a.of[3], b.of[0], b.of[2]);
    mma<kType>(c[1], a.of[0], a.of[1], a.of[2], a.of[3], b.of[1], b.of[3]);
  }

  int tiles_, row_ = 0, column_ = 0;
  bool keys_;
  LongSum sums_[2][16], key_sums_[2][2];
};

}  // namespace oscar::cuda
