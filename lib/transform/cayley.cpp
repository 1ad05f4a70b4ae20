// SPDX-License-Identifier: MIT
#include "transform/cayley.hpp"

namespace oscar {

Matrix cayley(std::span<const double> skew, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  // Gauss-Jordan on (I - A/2) X = I + A/2. No pivots are needed: the symmetric part of the left side is I.
  Matrix left(d * d), x(d * d);
  for (std::size_t i = 0; i < d * d; ++i) {
    const double one = i % (d + 1) == 0 ? 1 : 0;
    left[i] = one - skew[i] / 2;
    x[i] = one + skew[i] / 2;
  }
  for (std::size_t k = 0; k < d; ++k) {
    const double pivot = 1 / left[k * d + k];
    for (std::size_t j = k; j < d; ++j) left[k * d + j] *= pivot;
    for (std::size_t j = 0; j < d; ++j) x[k * d + j] *= pivot;
    for (std::size_t i = 0; i < d; ++i) {
      const double factor = left[i * d + k];
      if (i == k || factor == 0) continue;
      for (std::size_t j = k; j < d; ++j) left[i * d + j] -= factor * left[k * d + j];
      for (std::size_t j = 0; j < d; ++j) x[i * d + j] -= factor * x[k * d + j];
    }
  }
  return x;
}

}  // namespace oscar
