// SPDX-License-Identifier: MIT
// The product of row-major square matrices on the CPU, beside every backend, on the calling thread;
// kernels/cpu/products.hpp defines its bits. Non-goal: views.
#pragma once

#include <cstddef>
#include <span>

namespace oscar {

/// out = a b, or a^T b where `a_transposed`; all fp64 (dim, dim), out apart from a and b.
void square_product(std::span<const double> a, bool a_transposed, std::span<const double> b, std::size_t dim,
                    std::span<double> out);

}  // namespace oscar
