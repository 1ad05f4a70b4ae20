// SPDX-License-Identifier: MIT
// How the softmax KL of a layer changes if the keys are turned once more before they are quantised (and the queries
// with them, so that exact scores stay). Codes are taken as if they moved along with the rows ("straight through"): the
// error e_j = decode(encode(x_j)) - x_j keeps its place in the turned coordinates, and only its reader y_i turns.
//   x = keys U, y = queries U, s_ij = y_i x_j / sqrt(d), s^_ij = s_ij + y_i e_j / sqrt(d) for keys j of the history
//   KL = sum_i sum_j p_ij (log p_ij - log p^_ij)
//   G = sum_ij (p^_ij - p_ij) y_i^T e_j / sqrt(d),  d KL = <G, A> for U -> U exp(A), A skew
// In fp32, with fp64 sums of the KL. Non-goal: the rounding of servers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar {

/// One KV head of one sequence, in coordinates that the transform made.
struct KeyReads {
  int head_dim = 0;
  std::vector<float> keys;              // (num_keys, d)
  std::vector<float> queries;           // (positions, d): of all query heads of the group
  std::vector<std::int64_t> positions;  // of each query among the keys, ascending
};

struct KlGradient {
  double softmax_kl = 0;         // sum over queries, nats
  std::vector<double> gradient;  // G, (d, d)
};

/// Key reads kept where the backend computes, to be looked at in many rotations.
class HeldKeyReads {
 public:
  virtual ~HeldKeyReads() = default;

  /// The sums over all reads. rotation: U, (d, d).
  [[nodiscard]] virtual KlGradient gradient(std::span<const float> rotation) = 0;
};

}  // namespace oscar
