// SPDX-License-Identifier: MIT
#include "method/matrix.hpp"

#include <algorithm>
#include <cmath>

#include "base/vector_clones.hpp"

namespace oscar {
namespace {

/// out += a b
OSCAR_VECTOR_CLONES void add_product(const double* a, const double* b, std::size_t d, double* out) {
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t k = 0; k < d; ++k) {
      const double factor = a[i * d + k];
      for (std::size_t j = 0; j < d; ++j) out[i * d + j] += factor * b[k * d + j];
    }
  }
}

}  // namespace

Matrix multiply(std::span<const double> a, std::span<const double> b, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  Matrix out(d * d);
  add_product(a.data(), b.data(), d, out.data());
  return out;
}

Matrix transposed(std::span<const double> a, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  Matrix out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) out[i * d + j] = a[j * d + i];
  }
  return out;
}

Matrix power_of(const Spectrum& spectrum, double power) {
  const auto d = static_cast<std::size_t>(spectrum.dim);
  Matrix scaled = spectrum.vectors;
  for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= std::pow(std::max(spectrum.values[i % d], 1e-12), power);
  return multiply(scaled, transposed(spectrum.vectors, spectrum.dim), spectrum.dim);
}

double trace(std::span<const double> a, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  double sum = 0;
  for (std::size_t i = 0; i < d; ++i) sum += a[i * d + i];
  return sum;
}

}  // namespace oscar
