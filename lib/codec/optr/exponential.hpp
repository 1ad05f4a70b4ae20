// SPDX-License-Identifier: MIT
// Rotations exp(A - A^T), A any square matrix, and how a function of such a rotation changes with A. Row-major fp64.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace oscar::optr {

using Matrix = std::vector<double>;

/// exp(A - A^T), (dim, dim).
[[nodiscard]] Matrix turn_of(std::span<const double> a, std::size_t dim);

/// dF/dA where F is a function of E = exp(A - A^T) and `gradient` = dF/dE, all (dim, dim).
[[nodiscard]] Matrix pull_back(std::span<const double> a, std::span<const double> gradient, std::size_t dim);

}  // namespace oscar::optr
