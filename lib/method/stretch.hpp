// SPDX-License-Identifier: MIT
// The best linear transform of keys, where OSCAR (arXiv 2605.17757) takes the best rotation. Error in transformed space
// grows with tr(T^T C_K T), its effect on logits with tr(T^-1 C_Q T^-T); over M = T T^T the product is smallest at the
// matrix geometric mean
//   M = C_K^-1/2 (C_K^1/2 C_Q C_K^1/2)^1/2 C_K^-1/2
// of C / mean eigenvalue + lambda I. Keys are written with T = M^(power/2) E H P, E the eigenvectors of
// M^(power/2) C_K M^(power/2), and queries read with T^-T.
#pragma once

#include <vector>

#include "kernels/types.hpp"
#include "method/compose.hpp"

namespace oscar {

struct StretchOptions {
  /// 1: the geometric mean; 0: a rotation.
  double power = 1;
  /// The part of the mean eigenvalue that is added to both covariances.
  double lambda = 1e-2;
  /// Singular values of T are kept within this ratio.
  double max_condition = 1000;
  Composition composition = Composition::kRHPbr;
};

struct Stretched {
  /// One pair of matrices per KV head, exact inverses up to rounding to float32.
  Transform transform;
  /// Per head: of M^(power/2) C_K M^(power/2), ascending, (heads, d).
  std::vector<double> eigenvalues;
  /// Per head: how much less logit error than under any rotation, tr(C_K) tr(C_Q) / tr((C_K^1/2 C_Q C_K^1/2)^1/2)^2.
  std::vector<double> predicted_gain;
  /// Per head: largest / smallest singular value of T.
  std::vector<double> condition;
  /// Per head: sum of squared logit errors that bfloat16 copies of the two matrices make by themselves, over that of
  /// the logits.
  std::vector<double> bf16_disturbance;
};

/// One problem: second moments of the same heads, (heads, d, d) each.
struct StretchProblem {
  const MatrixStack* key = nullptr;
  const MatrixStack* query = nullptr;
};

/// All problems have the same head dimension; eigenproblems are solved together.
[[nodiscard]] std::vector<Stretched> stretch(const std::vector<StretchProblem>& problems, const StretchOptions& options,
                                             Backend& backend);

}  // namespace oscar
