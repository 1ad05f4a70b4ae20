// SPDX-License-Identifier: MIT
// Transforms: which moments of a layer recipes take, and what a recipe makes of those of many layers.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "fit/recipe.hpp"
#include "kernels/backend.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

/// The reference of recipe uresidual: its own rotations, by layer.
struct ReferenceRotation {
  std::vector<std::pair<int, SideTransform>> key, value;
};

/// W_O of a layer, (hidden_size, Hq, d); empty: no model is at hand.
using OutputProjection = std::function<Tensor(int layer)>;

/// What must be read from a layer's data before any eigenproblem is solved, per KV head.
struct LayerMoments {
  int layer_id = 0, key_dim = 0, value_dim = 0;
  /// By name: qqt, ktk, fisher (of queries), fisher_key, sst, oto, vtv, key_residual, value_residual; output: the
  /// energy of a value in the residual stream, v M v^T with M = mean over the query heads of W_O^T W_O.
  std::map<std::string, MatrixStack> covariance;
  std::vector<double> key_mean, fisher_key_mean;  // (Hkv, d)
};

/// Everything that one of the recipes needs, in as few passes as there are moments.
[[nodiscard]] LayerMoments take_moments(int layer_id, LayerStream& layer, const std::vector<Recipe>& recipes,
                                        const ReferenceRotation& reference, Backend& backend,
                                        const OutputProjection& output_projection = {});

/// Transforms, eigenvalues and covariances of layers, in order; matrices rounded to float32. Clip ratios are left at 0.
/// A stretch that bfloat16 would spoil is regularised until it does not, with a notice.
[[nodiscard]] std::vector<LayerRotation> fit_transforms(const std::vector<LayerMoments>& layers, const Recipe& recipe,
                                                        Backend& backend, Status& status);

}  // namespace oscar
