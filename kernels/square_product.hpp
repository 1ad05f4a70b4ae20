// SPDX-License-Identifier: MIT
// Products of square matrices on the CPU, beside every backend: OpenBLAS on the calling thread. Non-goal: views.
#pragma once

#include <cstddef>
#include <span>

namespace oscar {

/// out = a b, or a^T b where `a_transposed`; all row-major fp64 (dim, dim), out apart from a and b.
void square_product(std::span<const double> a, bool a_transposed, std::span<const double> b, std::size_t dim,
                    std::span<double> out);

}  // namespace oscar
