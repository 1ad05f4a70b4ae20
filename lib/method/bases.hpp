// SPDX-License-Identifier: MIT
// The data-free parts of a rotation, for any head dimension.
//   hadamard: orthonormal with entries +-1/sqrt(d): Sylvester's for powers of two, Paley's of order 12, 20 or 28 times
//     Sylvester's for 80, 96, 112, 160, 192 …; for other d, equal Sylvester blocks on the diagonal.
//   deal: the order P that spreads directions, sorted by eigenvalue, evenly over groups: bit reversal for powers of two
//     (OSCAR's P_br), its generalisation otherwise.
#pragma once

#include <vector>

namespace oscar {

/// (dim, dim), row-major, H H^T = I. dim >= 1.
[[nodiscard]] std::vector<double> hadamard(int dim);

/// perm with P = I[:, perm], i.e. (A P)[:, j] = A[:, perm[j]], for eigenvalues that ascend: perm[deal(i)] = dim - 1 -
/// i.
[[nodiscard]] std::vector<int> deal_permutation(int dim);

}  // namespace oscar
