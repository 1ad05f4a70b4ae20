// SPDX-License-Identifier: MIT
// The innermost loop of matrix products: a tile of sums that stays in registers. Every instruction set has its own
// shape of tile, and all give the same bits, since a sum is one chain of fused multiply-adds whatever tile it lies in.
// Non-goal: being included elsewhere than in products.cpp, its tests and the files that define the tiles.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar::cpu {

/// `sum`: out[i * columns + j] = sum over k < depth of a[i * row_step + k * depth_step] panel[k * columns + j], from
/// zero, in the order of k.
template <class T>
struct ProductTile {
  const char* name;
  int rows, columns;
  void (*sum)(std::int64_t depth, const T* a, std::int64_t row_step, std::int64_t depth_step, const T* panel, T* out);
};
constexpr int kMaxTileRows = 8, kMaxTileBytes = 128;  // of a row of a tile

/// The tile of an instruction set, for both types.
struct TilePair {
  ProductTile<double> doubles;
  ProductTile<float> floats;
};
extern const TilePair kAvx512Tile, kAvx2Tile, kPlainTile;

/// Those that this processor can run, the fastest first; the last runs everywhere, slowly where nothing is fused.
template <class T>
[[nodiscard]] const std::vector<ProductTile<T>>& product_tiles();

namespace {

/// Rows of kVectors vectors of kBytes each. Internal linkage, since the files that use it are compiled for different
/// instruction sets; where those have fused multiply-adds, -ffp-contract=fast makes one of the sum below. Steps that
/// are constants where this is inlined become parts of addresses.
template <class T, int kRows, int kVectors, int kBytes>
[[gnu::always_inline]] inline void sum_by_steps(std::int64_t depth, const T* a, std::int64_t row_step,
                                                std::int64_t depth_step, const T* panel, T* out) {
  using Vector [[gnu::vector_size(kBytes), gnu::aligned(sizeof(T)), gnu::may_alias]] = T;
  constexpr int kLanes = kBytes / static_cast<int>(sizeof(T));
  Vector sums[kRows][kVectors] = {};
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < depth; ++k, a += depth_step, panel += kVectors * kLanes) {
    const auto* const b = reinterpret_cast<const Vector*>(panel);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const T x = a[i * row_step];
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
#ifdef __FMA__
        sums[i][j] += x * b[j];
#else
        for (int lane = 0; lane < kLanes; ++lane) {
          if constexpr (sizeof(T) == 8) {
            sums[i][j][lane] = __builtin_fma(x, b[j][lane], sums[i][j][lane]);
          } else {
            sums[i][j][lane] = __builtin_fmaf(x, b[j][lane], sums[i][j][lane]);
          }
        }
#endif
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) *reinterpret_cast<Vector*>(out + (i * kVectors + j) * kLanes) = sums[i][j];
  }
}

/// Rows that lie one behind the other, or a tile's copy, have loops of their own.
template <class T, int kRows, int kVectors, int kBytes>
void tile_sum(std::int64_t depth, const T* a, std::int64_t row_step, std::int64_t depth_step, const T* panel, T* out) {
  if (row_step == 1 && depth_step == kRows) {
    sum_by_steps<T, kRows, kVectors, kBytes>(depth, a, 1, kRows, panel, out);
  } else if (depth_step == 1) {
    sum_by_steps<T, kRows, kVectors, kBytes>(depth, a, row_step, 1, panel, out);
  } else {
    sum_by_steps<T, kRows, kVectors, kBytes>(depth, a, row_step, depth_step, panel, out);
  }
}

/// Rows of so many vectors: a pair that is initialised before any code runs, which the processor might not know.
template <int kRows, int kVectors, int kBytes>
constexpr TilePair tile_pair(const char* name) {
  return {{name, kRows, kVectors * kBytes / 8, tile_sum<double, kRows, kVectors, kBytes>},
          {name, kRows, kVectors * kBytes / 4, tile_sum<float, kRows, kVectors, kBytes>}};
}

}  // namespace
}  // namespace oscar::cpu
