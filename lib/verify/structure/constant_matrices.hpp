// SPDX-License-Identifier: MIT
// H and P, the parts of a rotation that no data goes into, for any head dimension d. Verify's own, from their
// definitions:
//   H = base (x) Sylvester / sqrt(d) for d = 1, 12, 20 or 28 times a power of two, with Paley's matrices of these
//   orders
//       as base; for other d, as many blocks of the largest Sylvester matrix whose order divides d
//   P = I[:, order]: with g the largest power of two that divides d, the i-th smallest direction goes to place i / g of
//       group bitrev(i mod g), and order counts from the largest
#pragma once

#include <vector>

#include "verify/structure/matrix.hpp"

namespace oscar::verify {

/// (dim, dim); H H^T = I. dim > 0.
[[nodiscard]] Matrix hadamard_matrix(std::size_t dim);
/// (A P)[:, j] = A[:, order[j]]. dim > 0.
[[nodiscard]] std::vector<std::size_t> dealt_order(std::size_t dim);

}  // namespace oscar::verify
