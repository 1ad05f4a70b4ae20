// SPDX-License-Identifier: MIT
// The few dense products that checks need, row-major fp64 (dim, dim). Of the code that it checks the checker shares
// nothing but the BLAS.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace oscar::verify {

using Matrix = std::vector<double>;

/// a b, and a^T b.
[[nodiscard]] Matrix multiply(std::span<const double> a, std::span<const double> b, std::size_t dim);
[[nodiscard]] Matrix multiply_transposed(std::span<const double> a, std::span<const double> b, std::size_t dim);
[[nodiscard]] Matrix transpose(std::span<const double> a, std::size_t dim);
/// max |a^T a - I|; infinity if a is not finite.
[[nodiscard]] double orthogonality_error(std::span<const double> a, std::size_t dim);

/// sqrt(sum x^2)
[[nodiscard]] double frobenius(std::span<const double> values);

}  // namespace oscar::verify
