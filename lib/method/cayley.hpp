// SPDX-License-Identifier: MIT
// Small turns of a basis.
#pragma once

#include <span>

#include "method/matrix.hpp"

namespace oscar {

/// (I - A/2)^-1 (I + A/2), orthogonal for a skew A and close to exp(A) for a small one. skew: (dim, dim), row-major.
[[nodiscard]] Matrix cayley(std::span<const double> skew, int dim);

}  // namespace oscar
