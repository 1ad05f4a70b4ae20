// SPDX-License-Identifier: MIT
#include "verify/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace oscar::verify {

namespace {

/// kRows rows of a times b, so that a row of b is loaded once for all of them.
template <std::size_t kRows>
void multiply_rows(const double* a, const double* b, std::size_t dim, double* __restrict out) {
  for (std::size_t k = 0; k < dim; ++k) {
    const double* row = b + k * dim;
    for (std::size_t j = 0; j < dim; ++j) {
      for (std::size_t i = 0; i < kRows; ++i) out[i * dim + j] += a[i * dim + k] * row[j];
    }
  }
}

}  // namespace

Matrix multiply(std::span<const double> a, std::span<const double> b, std::size_t dim) {
  Matrix out(dim * dim);
  std::size_t i = 0;
  for (; i + 4 <= dim; i += 4) multiply_rows<4>(a.data() + i * dim, b.data(), dim, out.data() + i * dim);
  for (; i < dim; ++i) multiply_rows<1>(a.data() + i * dim, b.data(), dim, out.data() + i * dim);
  return out;
}

Matrix multiply_transposed(std::span<const double> a, std::span<const double> b, std::size_t dim) {
  return multiply(transpose(a, dim), b, dim);
}

Matrix transpose(std::span<const double> a, std::size_t dim) {
  Matrix out(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) out[j * dim + i] = a[i * dim + j];
  }
  return out;
}

double orthogonality_error(std::span<const double> a, std::size_t dim) {
  Matrix gram = multiply_transposed(a, a, dim);
  double worst = 0;
  for (std::size_t i = 0; i < dim; ++i) gram[i * dim + i] -= 1.0;
  for (const double x : gram) {
    if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(x));
  }
  return worst;
}

}  // namespace oscar::verify
