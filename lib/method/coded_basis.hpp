// SPDX-License-Identifier: MIT
// The basis in which keys, or values, of the coded cache are stored: channels are uncorrelated there, and the error
// that attention makes is the plain sum of squared errors of channels (a Karhunen-Loeve transform in the metric of what
// reads). With A the metric and B the covariance,
//   A^1/2 B A^1/2 = E diag(lambda) E^T, lambda descending;   write side W = A^1/2 E, read side R = A^-1/2 E, W R^T = I
// Metrics and covariances are those of one KV head, over the history that is quantised.
#pragma once

#include <span>
#include <vector>

#include "kernels/backend.hpp"
#include "kernels/types.hpp"

namespace oscar {

/// How much of the plain second moment of queries stands beside the one weighted by what the softmax feels.
inline constexpr double kPlainQueryPart = 0.3;
/// Added to a metric, as a part of its mean eigenvalue.
inline constexpr double kMetricFloor = 1e-4;

struct CodedBasis {
  Transform transform;         // one pair of matrices per KV head; the mean of keys
  std::vector<double> lambda;  // (heads, d): variances of the channels, descending
};

/// Returns the basis of keys. With m(X) the mean of X's diagonal,
/// A = m(C_F) (C_F / m(C_F) + plain_part C_Q / m(C_Q)) + kMetricFloor m(A) I.
///
/// fisher holds C_F = query / tokens and the moments of the keys that are read: key / weight and key_sum / weight.
/// tokens counts the queries behind C_F, those of each of the g query heads. queries is C_Q, (heads, d, d). centred:
/// the mean of the keys that are read is subtracted from every key; else there is none, and the second moment stands in
/// the place of the covariance. Throws NumericalError if a head was never read, if an entry is not finite or if keys do
/// not vary.
[[nodiscard]] CodedBasis coded_key_basis(const FisherSums& fisher, double tokens, const MatrixStack& queries,
                                         double plain_part, bool centred, Backend& backend);

/// Returns the basis of values, with A = metric + kMetricFloor m(metric) I and B = weighted m(plain) / m(weighted).
///
/// metric is what an error of a value does behind W_O: the mean of W_O^T W_O over the query heads, or the identity if
/// no model is at hand. weighted is sum_j (sum_q p_qj^2) v_j^T v_j, and plain the mean of v_j^T v_j. All are (heads, d,
/// d). Throws NumericalError if an entry is not finite or values are all zero.
[[nodiscard]] CodedBasis coded_value_basis(const MatrixStack& metric, const MatrixStack& weighted,
                                           const MatrixStack& plain, Backend& backend);

/// Puts channel order[i] of each head in place i. order: (heads, d).
void reorder(CodedBasis& basis, std::span<const int> order);

/// Turns channels of equal levels among each other by Hadamard matrices, in pieces of powers of two, so that each is
/// nearly Gaussian. Levels: (heads, d), equal ones side by side; channels of one level stay. lambda keeps the variances
/// before the turn.
void mix_equal_levels(CodedBasis& basis, std::span<const int> levels);

}  // namespace oscar
