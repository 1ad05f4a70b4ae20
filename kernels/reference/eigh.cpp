// SPDX-License-Identifier: MIT
#include "kernels/reference/eigh.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"

namespace oscar::reference {
namespace {

/// Turns columns p and q of m by a plane rotation: p' = c p - s q, q' = s p + c q.
void turn_columns(std::vector<double>& m, std::size_t dim, std::size_t p, std::size_t q, double c, double s) {
  for (std::size_t i = 0; i < dim; ++i) {
    const double x = m[i * dim + p], y = m[i * dim + q];
    m[i * dim + p] = c * x - s * y;
    m[i * dim + q] = s * x + c * y;
  }
}

/// Turns rows p and q of m likewise.
void turn_rows(std::vector<double>& m, std::size_t dim, std::size_t p, std::size_t q, double c, double s) {
  for (std::size_t i = 0; i < dim; ++i) {
    const double x = m[p * dim + i], y = m[q * dim + i];
    m[p * dim + i] = c * x - s * y;
    m[q * dim + i] = s * x + c * y;
  }
}

/// Zeroes every entry above the diagonal once. Returns whether there was one to be zeroed.
bool sweep(std::vector<double>& a, std::vector<double>& vectors, std::size_t dim) {
  bool turned = false;
  for (std::size_t p = 0; p < dim; ++p) {
    for (std::size_t q = p + 1; q < dim; ++q) {
      const double between = a[p * dim + q], low = a[p * dim + p], high = a[q * dim + q];
      if (std::abs(between) <= 1e-17 * (std::abs(low) + std::abs(high)) || between == 0) continue;
      const double theta = (high - low) / (2 * between);
      const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::hypot(theta, 1.0));
      const double c = 1 / std::hypot(t, 1.0), s = t * c;
      turn_columns(a, dim, p, q, c, s), turn_rows(a, dim, p, q, c, s);
      turn_columns(vectors, dim, p, q, c, s);
      turned = true;
    }
  }
  return turned;
}

}  // namespace

Eigenpairs eigh(std::span<const double> symmetric, int dim) {
  check_finite(symmetric);
  const auto size = static_cast<std::size_t>(dim);
  std::vector<double> a(symmetric.begin(), symmetric.end());
  std::vector<double> vectors(size * size);
  for (std::size_t i = 0; i < size; ++i) vectors[i * size + i] = 1;
  for (int sweeps = 0; sweep(a, vectors, size); ++sweeps) {
    if (sweeps == 60) throw NumericalError("an eigenproblem does not converge", "", "check the matrix for its scale");
  }
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return a[i * size + i]; });
  Eigenpairs pairs{std::vector<double>(size), std::vector<double>(size * size)};
  for (std::size_t j = 0; j < size; ++j) {
    pairs.values[j] = a[order[j] * size + order[j]];
    for (std::size_t i = 0; i < size; ++i) pairs.vectors[i * size + j] = vectors[i * size + order[j]];
  }
  return pairs;
}

}  // namespace oscar::reference
