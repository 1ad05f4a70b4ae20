// SPDX-License-Identifier: MIT
// What OptR's rotations are fitted on: the attention of the last queries of a sequence, read through the codec of
// one KV head. Tokens [sink, T - recent) are quantised for all of these queries; the others are exact.
//   keys:   mean over rows of KL(p || p^) + |(p^ - p) V W_j^T|^2 / hidden_size
//   values: mean over rows of |(p^ dV) W_j^T|^2 / hidden_size, dV = what the cache adds to values, p^ of quantised keys
// A row is a query of one query head j; p and p^ are its exact and its quantised softmax, W_j its part of W_O.
// Gradients go straight through the codec: what it adds to a row keeps its place in turned coordinates, only its reader
// turns. With the rotation R, they are G in loss(R exp(X)) = loss(R) + <G, X> + …, X skew. fp32, sums of rows in fp64.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::optr {

/// One KV head of one sequence, native rows, keys less their mean.
struct Reads {
  std::size_t key_dim = 0, value_dim = 0;
  std::size_t tokens = 0, group = 0;  // T, query heads
  std::vector<float> keys, values;    // (T, d), (T, d_v)
  std::vector<float> queries;         // (group, rows per head, d): the last positions of the sequence
  std::vector<float> scores;          // (rows, T): q k^T / sqrt(d); filled by take_scores()

  [[nodiscard]] std::size_t rows() const { return queries.size() / key_dim; }
};
void take_scores(Reads& reads);

/// Rows become what a reader of their codes gets.
using Codec = std::function<void(std::span<float> rows)>;

/// What stands still while rotations change.
struct Setting {
  Windows windows;
  Codec key_codec, value_codec;
  /// W_j^T W_j / hidden_size of the query heads of this KV head, (group, d_v, d_v).
  std::vector<float> output_forms;
};

struct Loss {
  double value = 0;
  std::vector<double> gradient;  // G
};

/// rotation: (d, d).
[[nodiscard]] Loss key_loss(const Reads& reads, std::span<const float> rotation, const Setting& setting);
/// p^ of the quantised tokens, (rows, T - sink - recent).
[[nodiscard]] std::vector<float> history_shares(const Reads& reads, std::span<const float> key_rotation,
                                                const Setting& setting);
/// shares: as history_shares() gives them; rotation: (d_v, d_v).
[[nodiscard]] Loss value_loss(const Reads& reads, std::span<const float> shares, std::span<const float> rotation,
                              const Setting& setting);

}  // namespace oscar::optr
