// SPDX-License-Identifier: MIT
// What a server does to rows before the cache: norm and rotary embedding of keys, transforms, and its roundings.
#pragma once

#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::reference {

// What a server does to a key between its projection and the cache: an RMS norm of the head's row, then a rotary
// embedding. Rows hold bfloat16 values before and after. All arithmetic is float32 with one rounding per operation,
// so that every backend makes the same bits.

enum class NormWeight { kFloat32, kBfloat16 };

/// y_i = bfloat16(x_i r w_i) with r = 1 / sqrt(mean of x_i^2 + epsilon), rounded once; the mean's sum has 32 partial
/// sums (strand_sum()). Of a weight in bfloat16 x_i r is rounded to bfloat16 before it is multiplied. weight: (d).
void rms_norm_row(std::span<float> row, std::span<const float> weight, NormWeight type, float epsilon);

/// Channels a and b of pair f become bfloat16(y_a cos_f - y_b sin_f) and bfloat16(y_b cos_f + y_a sin_f). cos_sin: the
/// cosines of all pairs, then the sines, of the row's position; as many channels have pairs, from the first on, and
/// others stay. Pairs are f and f + the number of pairs (NeoX), or interleaved 2 f and 2 f + 1 (GPT-J).
void rope_row(std::span<float> row, std::span<const float> cos_sin, bool interleaved);

// Rows as a cache stores them: turned by a transform, rounded as a server rounds. Precision::kServing rounds native
// rows, matrices and the product to bfloat16; Precision::kExact rounds the product to float32 alone.

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
