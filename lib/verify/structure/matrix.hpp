// SPDX-License-Identifier: MIT
// The few dense products that checks need, row-major fp64 (dim, dim). Of the code that it checks the checker shares
// nothing but the BLAS.
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/products.hpp"

namespace oscar::verify {

using Matrix = std::vector<double>;

/// a b
[[nodiscard]] inline Matrix multiply(std::span<const double> a, std::span<const double> b, std::size_t dim) {
  Matrix out(dim * dim);
  square_product(a, false, b, dim, out);
  return out;
}

/// a^T b
[[nodiscard]] inline Matrix multiply_transposed(std::span<const double> a, std::span<const double> b, std::size_t dim) {
  Matrix out(dim * dim);
  square_product(a, true, b, dim, out);
  return out;
}

[[nodiscard]] inline Matrix transpose(std::span<const double> a, std::size_t dim) {
  Matrix out(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) out[j * dim + i] = a[i * dim + j];
  }
  return out;
}

/// sqrt(sum x^2)
[[nodiscard]] inline double frobenius(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum);
}

}  // namespace oscar::verify
