// SPDX-License-Identifier: MIT
#include "method/cayley.hpp"

#include "base/vector_clones.hpp"

namespace oscar {
namespace {

/// x = left^-1 x by Gauss-Jordan, without pivots.
OSCAR_VECTOR_CLONES void solve(double* left, double* x, std::size_t d) {
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
}

}  // namespace

Matrix cayley(std::span<const double> skew, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  // (I - A/2) X = I + A/2; no pivots are needed, since the symmetric part of the left side is I.
  Matrix left(d * d), x(d * d);
  for (std::size_t i = 0; i < d * d; ++i) {
    const double one = i % (d + 1) == 0 ? 1 : 0;
    left[i] = one - skew[i] / 2;
    x[i] = one + skew[i] / 2;
  }
  solve(left.data(), x.data(), d);
  return x;
}

}  // namespace oscar
