// SPDX-License-Identifier: MIT
#include "codec/methods/matrix.hpp"

#include <cmath>

namespace oscar::methods {
namespace {

void transform_block(std::span<float> x) {
  for (std::size_t half = 1; half < x.size(); half *= 2) {
    for (std::size_t begin = 0; begin < x.size(); begin += 2 * half) {
      for (std::size_t i = begin; i < begin + half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a + b, x[i + half] = a - b;
      }
    }
  }
  const float factor = 1 / std::sqrt(static_cast<float>(x.size()));
  for (float& value : x) value *= factor;
}

template <class Move>
void rearrange(Matrix m, std::span<const std::size_t> order, const Move& move) {
  for_each_row(m, [&](std::span<float> row) {
    const std::vector<float> before(row.begin(), row.end());
    for (std::size_t j = 0; j < row.size(); ++j) move(row, before, j, order[j]);
  });
}

}  // namespace

void hadamard(Matrix m, std::size_t order) {
  std::size_t block = 1;
  while (2 * block <= order && m.cols % (2 * block) == 0) block *= 2;
  along_rows(m, block, transform_block);
}

float largest_magnitude(std::span<const float> x) {
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

float norm_of(std::span<const float> x) {
  double sum = 0;
  for (const float value : x) sum += double{value} * value;
  return static_cast<float>(std::sqrt(sum));
}

std::vector<double> column_sums(Matrix m) {
  std::vector<double> sums(m.cols);
  parallel_for((m.cols + kColumnsPerTask - 1) / kColumnsPerTask, [&](std::size_t task) {
    const std::size_t last = std::min(m.cols, (task + 1) * kColumnsPerTask);
    for (std::size_t i = 0; i < m.rows; ++i) {
      for (std::size_t j = task * kColumnsPerTask; j < last; ++j) sums[j] += m.at(i, j);
    }
  });
  return sums;
}

void take_columns(Matrix m, std::span<const std::size_t> order) {
  rearrange(m, order, [](auto row, const auto& before, std::size_t j, std::size_t from) { row[j] = before[from]; });
}

void put_columns(Matrix m, std::span<const std::size_t> order) {
  rearrange(m, order, [](auto row, const auto& before, std::size_t j, std::size_t to) { row[to] = before[j]; });
}

}  // namespace oscar::methods
