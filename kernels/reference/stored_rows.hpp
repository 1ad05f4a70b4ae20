// SPDX-License-Identifier: MIT
// Rows as a cache stores them: turned by a transform, rounded as a server rounds. Precision::kServing rounds native
// rows, matrices and the product to bfloat16; Precision::kExact rounds the product to float32 alone.
#pragma once

#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::reference {

/// rows[t, h] = x[t, h] M, (tokens, heads, d). M is the stack's only matrix, or matrix h / g for the g heads that share
/// one. Products are summed in fp64.
void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision, std::span<float> rows);

/// Returns what a cache stores of x, (tokens, heads, d): x M, or x itself without a matrix; keys of a Transform with a
/// mean (d, or heads times d values) are (x - mean) M, where the difference is rounded to float32.
[[nodiscard]] std::vector<float> stored_rows(HeadsView x, const MatrixStack* rotated_from_native,
                                             std::span<const double> mean, Precision precision);

/// Returns the value as Precision keeps it.
[[nodiscard]] double rounded(double value, Precision precision);

}  // namespace oscar::reference
