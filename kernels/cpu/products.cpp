// SPDX-License-Identifier: MIT
#include "kernels/cpu/products.hpp"

#include <algorithm>
#include <vector>

#include "base/errors.hpp"
#include "kernels/cpu/product_tile.hpp"
#include "kernels/products.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kDepth = 256;     // of a step; a panel of b has 16 or 32 KB, which the nearest cache holds
constexpr std::int64_t kRows = 96;       // of a block, in whole tiles of every kind; the second cache holds them
constexpr std::int64_t kColumns = 1024;  // whose panels are copied together
constexpr std::int64_t kColumnsOfCopies = 256;  // from which on copies of rows of a cost less than they save

/// Element (i, j) lies at data[i * row_step + j * column_step].
template <class T>
struct Matrix {
  const T* data;
  std::int64_t row_step, column_step;
  [[nodiscard]] const T* at(std::int64_t i, std::int64_t j) const { return data + i * row_step + j * column_step; }
};

/// out[i * width + j] = from(i, j), 0 from column `columns` on; rows or columns of `from` are contiguous.
template <class T>
void copy_panel(const Matrix<T>& from, std::int64_t rows, std::int64_t columns, std::int64_t width, T* out) {
  if (columns < width) std::fill_n(out, rows * width, T{0});
  if (from.column_step == 1) {
    for (std::int64_t i = 0; i < rows; ++i, out += width) {
      const T* const values = from.at(i, 0);
      for (std::int64_t j = 0; j < columns; ++j) out[j] = values[j];
    }
    return;
  }
  constexpr std::int64_t kBlock = 16;  // rows at a time, so that a line of the cache is read once
  std::int64_t first = 0;
  for (; first + kBlock <= rows; first += kBlock, out += kBlock * width) {
    for (std::int64_t j = 0; j < columns; ++j) {
      const T* const values = from.at(first, j);
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kBlock; ++i) out[i * width + j] = values[i];
    }
  }
  for (; first < rows; ++first, out += width) {
    for (std::int64_t j = 0; j < columns; ++j) out[j] = *from.at(first, j);
  }
}

template <class T>
struct Product {
  std::int64_t m, n, k;
  Matrix<T> a, b;
  T alpha;
  bool accumulate, upper_only;
  T* c;
  std::int64_t ldc;
  const ProductTile<T>& tile;

  /// Steps of k outside blocks of rows, so that c takes their sums in order.
  void compute() const {
    for (std::int64_t column = 0; column < n; column += kColumns) {
      const std::int64_t columns = std::min(kColumns, n - column);
      for (std::int64_t first = 0; first < k; first += kDepth) {
        add_step(first, std::min(kDepth, k - first), column, columns);
      }
    }
  }

 private:
  /// Memory of a thread for copies: fresh memory would be cleared, page by page, for each product. Vectors that begin
  /// at a line of the cache never lie in two.
  struct Copies {
    struct alignas(64) Line {
      T values[64 / sizeof(T)];
    };
    std::vector<Line> rows, panels;

    static T* room(std::vector<Line>& lines, std::int64_t count) {
      lines.resize(static_cast<std::size_t>(count) * sizeof(T) / sizeof(Line) + 1);
      return lines.front().values;
    }
  };

  /// What `depth` values of k from `first` on give in `columns` columns of c.
  void add_step(std::int64_t first, std::int64_t depth, std::int64_t column, std::int64_t columns) const {
    thread_local Copies copies;
    T* const rows = Copies::room(copies.rows, kDepth * kRows);
    T* const panels = Copies::room(copies.panels, kDepth * (columns + tile.columns));
    for (std::int64_t j = 0; j < columns; j += tile.columns) {
      copy_panel(Matrix<T>{b.at(first, column + j), b.row_step, b.column_step}, depth,
                 std::min<std::int64_t>(tile.columns, columns - j), tile.columns, panels + j * depth);
    }
    const std::int64_t end = upper_only ? std::min(m, column + columns) : m;
    for (std::int64_t row = 0; row < end; row += kRows) {
      add_rows(first, depth, row, std::min(row + kRows, end), column, columns, rows, panels);
    }
  }

  /// The same in rows [begin, end). Rows of a that many columns use are copied, too, tile by tile.
  void add_rows(std::int64_t first, std::int64_t depth, std::int64_t begin, std::int64_t end, std::int64_t column,
                std::int64_t columns, T* copies, const T* panels) const {
    alignas(64) T sums[kMaxTileRows * kMaxTileBytes / sizeof(T)];
    const std::int64_t copied_from = columns >= kColumnsOfCopies ? begin : end - (end - begin) % tile.rows;
    for (std::int64_t row = copied_from; row < end; row += tile.rows) {
      copy_panel(Matrix<T>{a.at(row, first), a.column_step, a.row_step}, depth,
                 std::min<std::int64_t>(tile.rows, end - row), tile.rows, copies + (row - begin) * depth);
    }
    for (std::int64_t j = 0; j < columns; j += tile.columns) {
      const std::int64_t width = std::min<std::int64_t>(tile.columns, columns - j);
      const T* const panel = panels + j * depth;
      for (std::int64_t row = begin; row < end && !(upper_only && row >= column + j + width); row += tile.rows) {
        const std::int64_t count = std::min<std::int64_t>(tile.rows, end - row);
        for (std::int64_t i = 0; i < count; ++i) __builtin_prefetch(c + (row + i) * ldc + column + j, 1);
        if (row >= copied_from) {
          tile.sum(depth, copies + (row - begin) * depth, 1, tile.rows, panel, sums);
        } else {
          tile.sum(depth, a.at(row, first), a.row_step, a.column_step, panel, sums);
        }
        for (std::int64_t i = 0; i < count; ++i) {
          const std::int64_t from = upper_only ? std::clamp<std::int64_t>(row + i - column - j, 0, width) : 0;
          take(sums + i * tile.columns, from, width, accumulate || first > 0, c + (row + i) * ldc + column + j);
        }
      }
    }
  }

  /// Values [from, to) of a row of a tile; whole rows go by pieces whose length is a constant.
  void take(const T* sums, std::int64_t from, std::int64_t to, bool add, T* out) const {
    constexpr std::int64_t kPiece = 64 / sizeof(T);
    for (; from == 0 && to >= kPiece; sums += kPiece, out += kPiece, to -= kPiece) take_some(sums, kPiece, add, out);
    take_some(sums + from, to - from, add, out + from);
  }

  [[gnu::always_inline]] void take_some(const T* __restrict sums, std::int64_t count, bool add,
                                        T* __restrict out) const {
    if (add) {
      for (std::int64_t j = 0; j < count; ++j) out[j] += alpha * sums[j];
    } else {
      for (std::int64_t j = 0; j < count; ++j) out[j] = alpha * sums[j];
    }
  }
};

template <class T>
void multiply(const Gemm& s, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc) {
  if (s.k == 0 && !s.accumulate) {
    for (std::int64_t i = 0; i < s.m; ++i) std::fill_n(c + i * ldc, s.n, T{0});
  }
  const Matrix<T> right = s.b == Transpose::kYes ? Matrix<T>{b, 1, ldb} : Matrix<T>{b, ldb, 1};
  Product<T>{s.m,
             s.n,
             s.k,
             {a, lda, 1},
             right,
             static_cast<T>(s.alpha),
             s.accumulate,
             false,
             c,
             ldc,
             product_tiles<T>().front()}
      .compute();
}

}  // namespace

template <class T>
const std::vector<ProductTile<T>>& product_tiles() {
  static const std::vector<ProductTile<T>> tiles = [] {
    std::vector<ProductTile<T>> list;
    const auto add = [&](const TilePair& pair) {
      if constexpr (sizeof(T) == 8) {
        list.push_back(pair.doubles);
      } else {
        list.push_back(pair.floats);
      }
    };
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) add(kAvx512Tile);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) add(kAvx2Tile);
#endif
    add(kPlainTile);
    return list;
  }();
  return tiles;
}
template const std::vector<ProductTile<double>>& product_tiles();
template const std::vector<ProductTile<float>>& product_tiles();

void gemm(const Gemm& shape, const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double* c,
          std::int64_t ldc) {
  multiply(shape, a, lda, b, ldb, c, ldc);
}

void gemm(const Gemm& shape, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
          std::int64_t ldc) {
  multiply(shape, a, lda, b, ldb, c, ldc);
}

void add_gram_upper(const double* rows, std::int64_t count, std::int64_t dim, double* gram) {
  Product<double>{
      dim, dim, count, {rows, 1, dim}, {rows, dim, 1}, 1, true, true, gram, dim, product_tiles<double>().front()}
      .compute();
}

}  // namespace oscar::cpu

namespace oscar {

void square_product(std::span<const double> a, bool a_transposed, std::span<const double> b, std::size_t dim,
                    std::span<double> out) {
  OSCAR_CHECK(a.size() == dim * dim && b.size() == a.size() && out.size() == a.size());
  const auto n = static_cast<std::int64_t>(dim);
  const cpu::Matrix<double> left =
      a_transposed ? cpu::Matrix<double>{a.data(), 1, n} : cpu::Matrix<double>{a.data(), n, 1};
  cpu::Product<double>{
      n, n, n, left, {b.data(), n, 1}, 1, false, false, out.data(), n, cpu::product_tiles<double>().front()}
      .compute();
}

}  // namespace oscar
