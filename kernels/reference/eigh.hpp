// SPDX-License-Identifier: MIT
// Symmetric eigenproblems by Jacobi's method (1846; Golub and Van Loan, Matrix Computations, section 8.5): plane
// rotations zero one entry after the other until nothing is left beside the diagonal.
#pragma once

#include <span>

#include "kernels/types.hpp"

namespace oscar::reference {

/// Solves a symmetric (dim, dim) matrix in fp64; eigenvalues ascend. Throws NumericalError if entries are not finite,
/// or if 60 sweeps do not suffice.
[[nodiscard]] Eigenpairs eigh(std::span<const double> symmetric, int dim);

}  // namespace oscar::reference
