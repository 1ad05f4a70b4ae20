// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "tensor/tensor.hpp"

namespace oscar::test {

/// One matrix with these values on its diagonal.
[[nodiscard]] inline MatrixStack diagonal(const std::vector<double>& values) {
  MatrixStack out(1, static_cast<int>(values.size()));
  for (std::size_t i = 0; i < values.size(); ++i) out[0][i * (values.size() + 1)] = values[i];
  return out;
}

/// max |A^T A - I| of a square matrix.
[[nodiscard]] inline double orthogonality_error(std::span<const double> a) {
  const auto d = static_cast<std::size_t>(std::sqrt(a.size()));
  double worst = 0;
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) {
      double dot = i == j ? -1 : 0;
      for (std::size_t k = 0; k < d; ++k) dot += a[k * d + i] * a[k * d + j];
      worst = std::max(worst, std::abs(dot));
    }
  }
  return worst;
}

}  // namespace oscar::test
