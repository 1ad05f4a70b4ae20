// SPDX-License-Identifier: MIT
// From moments to transforms: the eigenproblems of a recipe, and the factors that are composed of their vectors.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "kernels/backend.hpp"
#include "method/recipe.hpp"
#include "moments/moment.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

/// What is known of a layer's rows before any eigenproblem is solved.
struct LayerMoments {
  int layer_id = 0, key_dim = 0, value_dim = 0;
  /// (Hkv, d, d) each; kFisher is that of queries.
  std::map<Moment, MatrixStack> covariance;
  std::vector<double> key_mean, fisher_key_mean;  // (Hkv, d)
};

using LayersMoments = std::span<const LayerMoments* const>;

/// Returns the transforms, eigenvalues and covariances of layers, in order, rounded to float32. Eigenproblems of all
/// layers are solved together. Clip ratios are left at 0. A stretch that bfloat16 would spoil is regularised until it
/// does not, with a notice; throws NumericalError if that takes too much.
[[nodiscard]] std::vector<LayerRotation> solve(LayersMoments layers, const Recipe& recipe, Backend& backend,
                                               Status& status);

}  // namespace oscar
