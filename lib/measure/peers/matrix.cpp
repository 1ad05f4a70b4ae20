// SPDX-License-Identifier: MIT
#include "measure/peers/matrix.hpp"

#include <cmath>
#include <utility>

#include "base/vector_clones.hpp"

namespace oscar::methods {
namespace {

/// Of neighbours; what they give goes to the two halves of `to`. After log2(n) of these steps every bit of the index
/// has been the lowest once and is back in its place: the butterflies of the usual network, in loops that vectorise.
OSCAR_VECTOR_CLONES void butterflies(const float* __restrict from, float* __restrict to, std::size_t half) {
  for (std::size_t i = 0; i < half; ++i) {
    const float a = from[2 * i], b = from[2 * i + 1];
    to[i] = a + b, to[i + half] = a - b;
  }
}

void transform_block(std::span<float> x) {
  thread_local std::vector<float> scratch;
  scratch.resize(x.size());
  float *from = x.data(), *to = scratch.data();
  for (std::size_t done = 1; done < x.size(); done *= 2) {
    butterflies(from, to, x.size() / 2);
    std::swap(from, to);
  }
  const float factor = 1 / std::sqrt(static_cast<float>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = from[i] * factor;
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
