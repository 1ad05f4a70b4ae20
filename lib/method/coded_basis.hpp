// SPDX-License-Identifier: MIT
// The basis in which keys, or values, of the coded cache are stored: channels are uncorrelated there, and the error
// that attention makes is the plain sum of squared errors of channels (a Karhunen-Loeve transform in the metric of what
// reads). With A the metric and B the covariance,
//   A^1/2 B A^1/2 = E diag(lambda) E^T, lambda descending;   write side W = A^1/2 E, read side R = A^-1/2 E, W R^T = I
// Metrics and covariances are those of one KV head, over the history that is quantised.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "kernels/backend.hpp"
#include "kernels/rotary.hpp"
#include "kernels/types.hpp"

namespace oscar {

/// How much of what any text may ask for stands beside what errors cost on the calibration's: next to what the softmax
/// feels, and next to what a model's predictions feel.
inline constexpr double kPlainQueryPart = 0.3, kPlainCostPart = 0.1;
/// Added to a metric, as a part of its mean eigenvalue.
inline constexpr double kMetricFloor = 1e-4;

struct CodedBasis {
  Transform transform;                // one pair of matrices per KV head; the mean of keys
  std::vector<double> lambda;         // (heads, d): variances of the channels, descending
  std::optional<Rotary> rotary = {};  // of keys before RoPE, whose matrices are block diagonal over its pairs
};

/// Returns the basis of keys. With m(X) the mean of X's diagonal,
/// A = m(C) (C / m(C) + plain_part C_Q / m(C_Q)) + kMetricFloor m(A) I.
///
/// cost is C: e C e^T is what an error e of a key costs, up to a factor. queries is C_Q, their second moment. Both are
/// (heads, d, d). fisher has the moments of the keys that are read: key / weight and key_sum / weight. centred: the
/// mean of these is subtracted from every key; else there is none, and the second moment stands in the place of the
/// covariance. Throws NumericalError if errors of a head cost nothing, if an entry is not finite or if keys do not
/// vary.
[[nodiscard]] CodedBasis coded_key_basis(const MatrixStack& cost, const MatrixStack& queries, double plain_part,
                                         const FisherSums& fisher, bool centred, Backend& backend);

/// Queries and keys are also `from` to `to` positions further apart than where a metric was taken. `part` of the metric
/// is its mean over these distances; the rest is as it was taken.
struct Distances {
  double from = 0, to = 0, part = 1;
};

/// Returns the basis of keys before RoPE, of each pair of channels that turn together alone, so that a reader needs no
/// product with a matrix between turning and the query. On each pair it is that of coded_key_basis(), with the plain
/// part's mean over both channels, and always centred: readers add the mean before they turn. Throws NumericalError as
/// coded_key_basis() does.
///
/// cost: of errors of keys before RoPE. fisher: base_key and base_key_sum are read, and weight.
[[nodiscard]] CodedBasis coded_pair_basis(const MatrixStack& cost, const MatrixStack& queries, double plain_part,
                                          const FisherSums& fisher, const Rotary& rotary, Distances distances);

/// Returns the basis of values, with A = cost + (plain_part + kMetricFloor) m(cost) I and B = weighted m(plain) /
/// m(weighted).
///
/// cost: e cost e^T is what an error e of a value costs, up to a factor. weighted is sum_j (sum_q p_qj^2) v_j^T v_j,
/// and plain the mean of v_j^T v_j. All are (heads, d, d). Throws NumericalError if an entry is not finite or values
/// are all zero.
[[nodiscard]] CodedBasis coded_value_basis(const MatrixStack& cost, double plain_part, const MatrixStack& weighted,
                                           const MatrixStack& plain, Backend& backend);

/// Puts channel order[i] of each head in place i. order: (heads, d).
void reorder(CodedBasis& basis, std::span<const int> order);

/// Turns channels of equal levels among each other by Hadamard matrices, in pieces of powers of two, so that each is
/// nearly Gaussian. Levels: (heads, d), equal ones side by side; channels of one level stay. lambda keeps the variances
/// before the turn.
void mix_equal_levels(CodedBasis& basis, std::span<const int> levels);

}  // namespace oscar
