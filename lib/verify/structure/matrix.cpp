// SPDX-License-Identifier: MIT
#include "verify/structure/matrix.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/products.hpp"

namespace oscar::verify {

Matrix multiply(std::span<const double> a, std::span<const double> b, std::size_t dim) {
  Matrix out(dim * dim);
  square_product(a, false, b, dim, out);
  return out;
}

Matrix multiply_transposed(std::span<const double> a, std::span<const double> b, std::size_t dim) {
  Matrix out(dim * dim);
  square_product(a, true, b, dim, out);
  return out;
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

double frobenius(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace oscar::verify
