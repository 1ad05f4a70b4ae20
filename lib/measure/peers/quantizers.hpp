// SPDX-License-Identifier: MIT
// A view of rows as a matrix, and the walks over it that codecs share: groups along rows, groups along columns,
// Hadamard blocks, columns in another order. Groups are independent, so walks run on all threads.
// What methods are put together from: how one side, keys or values, of a history is quantised and at what bits.
// Quantisers of a group of values; each replaces the values by what a reader of the codes gets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/threads.hpp"
#include "measure/kv_method.hpp"

namespace oscar::methods {

struct Matrix {
  std::span<float> data;  // (rows, cols), row-major
  std::size_t rows = 0, cols = 0;

  [[nodiscard]] std::span<float> row(std::size_t i) const { return data.subspan(i * cols, cols); }
  [[nodiscard]] float& at(std::size_t i, std::size_t j) const { return data[i * cols + j]; }
};

inline constexpr std::size_t kRowsPerTask = 256, kColumnsPerTask = 64;

/// change(row) for every row.
template <class Change>
void for_each_row(Matrix m, const Change& change) {
  parallel_for((m.rows + kRowsPerTask - 1) / kRowsPerTask, [&](std::size_t task) {
    const std::size_t end = std::min(m.rows, (task + 1) * kRowsPerTask);
    for (std::size_t i = task * kRowsPerTask; i < end; ++i) change(m.row(i));
  });
}

/// change(group) for every `group` neighbouring values of a row; the last group of a row may be shorter.
template <class Change>
void along_rows(Matrix m, std::size_t group, const Change& change) {
  for_each_row(m, [&](std::span<float> row) {
    for (std::size_t j = 0; j < m.cols; j += group) change(row.subspan(j, std::min(group, m.cols - j)));
  });
}

/// change(values) for the values of column j in rows [begin, end).
template <class Change>
void change_column(Matrix m, std::size_t j, std::size_t begin, std::size_t end, std::vector<float>& scratch,
                   const Change& change) {
  scratch.resize(end - begin);
  for (std::size_t i = begin; i < end; ++i) scratch[i - begin] = m.at(i, j);
  change(std::span(scratch));
  for (std::size_t i = begin; i < end; ++i) m.at(i, j) = scratch[i - begin];
}

/// change(group, column) for every `group` values below each other, counted from the first row; the last group of a
/// column may be shorter.
template <class Change>
void along_columns(Matrix m, std::size_t group, const Change& change) {
  parallel_for((m.cols + kColumnsPerTask - 1) / kColumnsPerTask, [&](std::size_t task) {
    std::vector<float> scratch;
    const std::size_t last = std::min(m.cols, (task + 1) * kColumnsPerTask);
    for (std::size_t i = 0; i < m.rows; i += group) {
      for (std::size_t j = task * kColumnsPerTask; j < last; ++j) {
        change_column(m, j, i, std::min(i + group, m.rows), scratch,
                      [&](std::span<float> values) { change(values, j); });
      }
    }
  });
}

/// Each row times Sylvester's Hadamard matrices / sqrt(n) on the diagonal: n is `order`, or the largest power of two
/// below it that divides the number of columns. Its own inverse.
void hadamard(Matrix m, std::size_t order);

[[nodiscard]] float largest_magnitude(std::span<const float> x);
/// sqrt(sum x^2)
[[nodiscard]] float norm_of(std::span<const float> x);
/// Over the rows of each column.
[[nodiscard]] std::vector<double> column_sums(Matrix m);

/// Column j becomes what column order[j] was.
void take_columns(Matrix m, std::span<const std::size_t> order);
/// Undoes take_columns.
void put_columns(Matrix m, std::span<const std::size_t> order);

/// The indices of `keys`, smallest key first; equal keys keep their order.
template <class Key>
[[nodiscard]] std::vector<std::size_t> sorted_order(const std::vector<Key>& keys) {
  std::vector<std::size_t> order(keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
  return order;
}

/// Returns the rows of a history as a matrix (tokens * heads, dim).
[[nodiscard]] inline Matrix by_head(const History& history) {
  return {history.rows, static_cast<std::size_t>(history.tokens * history.heads),
          static_cast<std::size_t>(history.dim)};
}
/// Returns the rows of a history as a matrix (tokens, heads * dim).
[[nodiscard]] inline Matrix by_token(const History& history) {
  return {history.rows, static_cast<std::size_t>(history.tokens),
          static_cast<std::size_t>(history.heads) * static_cast<std::size_t>(history.dim)};
}

/// Groups of `group` (0: all of them) that `size` values are cut into, over `size`.
[[nodiscard]] double groups_per_element(int size, int group);

using Bits = std::function<StoredBits(const KvShape&)>;
/// Nothing but codes and fixed formats.
[[nodiscard]] Bits fixed_bits(double bits);
/// codes, and `parameters` numbers for each group of channels of a (token, head) row.
[[nodiscard]] Bits bits_by_token(double codes, int parameters, int group = 0);

/// Quantises groups of neighbouring channels of each (token, head) row; 0: the whole row.
template <class Quantizer>
[[nodiscard]] SideMethod by_token(Quantizer quantizer, int group, Bits bits) {
  return {[=](const History& history) {
            along_rows(by_head(history), static_cast<std::size_t>(group == 0 ? history.dim : group), quantizer);
          },
          std::move(bits)};
}

/// `side` on rows times Hadamard blocks of at most `order` (0: the largest that fits a head); the result is turned
/// back.
[[nodiscard]] SideMethod rotated(SideMethod side, int order = 0);

/// `side` on keys as they were before RoPE; the result is turned again. Where nothing tells how keys turn, on keys as
/// they are.
[[nodiscard]] SideMethod before_rope(SideMethod side);

/// Whole numbers, ties to even, whatever the rounding mode of the process.
[[nodiscard]] inline float round_even(float x) {
  constexpr float kShift = 12582912;  // 1.5 * 2^23: the sum has no fraction bits left
  return x > -4194304 && x < 4194304 ? (x + kShift) - kShift : x;
}

// Values rounded to narrow formats, kept as float: nearest, ties to even, saturating at the largest finite value.
[[nodiscard]] float round_to_f16(float x);
/// Sign, 4 exponent bits, 3 of mantissa; largest 448.
[[nodiscard]] float round_to_e4m3(float x);
/// Sign, 2 exponent bits, 1 of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6.
[[nodiscard]] float round_to_e2m1(float x);
inline constexpr float kLargestE4M3 = 448, kLargestE2M1 = 6;

enum class Rounding {
  kEven,  // nearest, ties to even
  kUp     // floor(x + 0.5)
};
enum class ZeroPoint { kMinimum, kInteger, kIntegerShifted };

/// The affine quantiser, in the variants that other people's methods use:
///   range:   low, high = min, max, widened to contain 0 if include_zero
///   scale:   s = max((high - low) / (levels - 1), smallest_scale)
///   kMinimum:        q = clamp(round((x - low) / s)),          x^ = q s + low
///   kInteger:        z = even(-low / s), q = clamp(round(x / s) + z),  x^ = (q - z) s
///   kIntegerShifted: z = even(-low / s), q = clamp(round(x / s + z)),  x^ = (q - z) s
/// The minimum, and the scale beside it, are rounded to fp16 after the codes were found; the scale beside a whole zero
/// point before, or their product would miss the range. The codec of OSCAR's servers, whose zero point is a real
/// number, is RowCodec.
struct Affine {
  int levels = 4;
  Rounding rounding = Rounding::kEven;
  ZeroPoint zero = ZeroPoint::kMinimum;
  bool include_zero = false;
  float smallest_scale = 0x1p-24F;  // the smallest of fp16

  void operator()(std::span<float> group) const;
};

/// Groups of `group` (0: all) neighbouring channels of each (token, head) row, two parameters each.
[[nodiscard]] SideMethod affine_by_token(const Affine& affine, int group);
/// Channel by channel, groups of `group` tokens, counted from the first token of the history; two parameters each.
[[nodiscard]] SideMethod affine_by_channel(const Affine& affine, int group);

/// Levels at any place.
struct Codebook {
  std::vector<float> levels;  // ascending
  std::vector<float> bounds;  // half-way between: x takes the level whose index is the number of bounds <= x

  /// Replaces each value by its nearest level.
  void take_nearest(std::span<float> values) const;
};
/// Least squared error for N(0, 1) (Lloyd 1982, Max 1960). bits: 1 to 4.
[[nodiscard]] Codebook gaussian_codebook(int bits);

}  // namespace oscar::methods
