// SPDX-License-Identifier: MIT
// Which moments of a layer recipes take.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dump/source.hpp"
#include "fit/recipe.hpp"
#include "kernels/backend.hpp"
#include "rotation/rotation_set.hpp"
#include "stats/moments.hpp"

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

/// Those among them that are sums over tokens, so that parts of a layer's data add up.
struct AdditiveMoments {
  std::map<std::string, MomentSums> sums;  // qqt, ktk, oto, vtv
  std::optional<FisherSums> fisher;
  std::optional<KeySums> keys;

  void merge(const AdditiveMoments& other);
};
/// What the recipes need of them, in as few passes as there are sums.
[[nodiscard]] AdditiveMoments take_sums(LayerStream& layer, const std::vector<Recipe>& recipes, Backend& backend);

/// Everything that one of the recipes needs; sums: of the same data.
[[nodiscard]] LayerMoments take_moments(int layer_id, LayerStream& layer, const AdditiveMoments& sums,
                                        const std::vector<Recipe>& recipes, const ReferenceRotation& reference,
                                        Backend& backend, const OutputProjection& output_projection = {});

}  // namespace oscar
