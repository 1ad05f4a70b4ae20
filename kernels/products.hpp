// SPDX-License-Identifier: MIT
// Products of row-major matrices on the CPU, beside every backend, on the calling thread; kernels/cpu/products.hpp
// defines their bits. Non-goal: views.
#pragma once

#include <cstddef>
#include <span>

namespace oscar {

/// out = a b, or a^T b where `a_transposed`; all fp64 (dim, dim), out apart from a and b.
void square_product(std::span<const double> a, bool a_transposed, std::span<const double> b, std::size_t dim,
                    std::span<double> out);

/// out (m, n) = a (m, k) b in fp32, where b is (k, n), or (n, k) if `b_transposed`; m, n and k follow from `k` and the
/// sizes of a and b, out lies apart from both.
void row_product(std::span<const float> a, std::span<const float> b, bool b_transposed, std::size_t k,
                 std::span<float> out);

}  // namespace oscar
