// SPDX-License-Identifier: MIT
// Sums of symmetric matrices of which only the upper triangle is computed.
#pragma once

#include <cstddef>
#include <span>

namespace oscar::cpu {

/// Adds the upper triangle of `partial` (dim, dim) to both triangles of `gram`.
inline void add_symmetric(std::span<const double> partial, std::span<double> gram, int dim) {
  for (int i = 0; i < dim; ++i) {
    for (int j = i; j < dim; ++j) {
      const double value = partial[static_cast<std::size_t>(i) * dim + j];
      gram[static_cast<std::size_t>(i) * dim + j] += value;
      if (j != i) gram[static_cast<std::size_t>(j) * dim + i] += value;
    }
  }
}

}  // namespace oscar::cpu
