// SPDX-License-Identifier: MIT
// A view of rows as a matrix, and the walks over it that codecs share: groups along rows, groups along columns,
// Hadamard blocks, columns in another order. Groups are independent, so walks run on all threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/threads.hpp"

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

}  // namespace oscar::methods
