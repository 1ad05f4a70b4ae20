// SPDX-License-Identifier: MIT
// Which moments of a layer recipes take.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dump/source.hpp"
#include "fit/recipe.hpp"
#include "kernels/backend.hpp"
#include "moments/moments.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

/// The reference of recipe uresidual: its own rotations, by layer.
struct ReferenceRotation {
  std::vector<std::pair<int, SideTransform>> key, value;
};

/// W_O of a layer, (hidden_size, Hq, d); empty: no model is at hand.
using OutputProjection = std::function<Tensor(int layer)>;

/// Returns what an error of a value costs in the residual stream, (kv_heads, d, d): the mean over the query heads of
/// each KV head of W_O^T W_O. projection: W_O, (hidden_size, Hq, d).
[[nodiscard]] MatrixStack output_metric(const Tensor& projection, int kv_heads, Backend& backend);

/// What must be read from a layer's data before any eigenproblem is solved, per KV head.
struct LayerMoments {
  int layer_id = 0, key_dim = 0, value_dim = 0;
  /// By name: qqt, ktk, fisher (of queries), fisher_key, sst, oto, vtv, key_residual, value_residual; output: the
  /// energy of a value in the residual stream, v M v^T with M = mean over the query heads of W_O^T W_O.
  std::map<std::string, MatrixStack> covariance;
  std::vector<double> key_mean, fisher_key_mean;  // (Hkv, d)
};

/// What the recipes look at: names of AdditiveMoments ("keys": their sums), and sst, which needs a pass of its own.
[[nodiscard]] std::set<std::string> needed_sums(const std::vector<Recipe>& recipes);
/// Those that add up, in as many passes as there are.
[[nodiscard]] AdditiveMoments take_sums(LayerStream& layer, const std::vector<Recipe>& recipes, Backend& backend);

/// The means of sums; windows: those of fisher.
[[nodiscard]] LayerMoments moments_of(int layer_id, int key_dim, int value_dim, const AdditiveMoments& sums,
                                      Windows windows);

/// Everything that one of the recipes needs; sums: of the same data.
[[nodiscard]] LayerMoments take_moments(int layer_id, LayerStream& layer, const AdditiveMoments& sums,
                                        const std::vector<Recipe>& recipes, const ReferenceRotation& reference,
                                        Backend& backend, const OutputProjection& output_projection = {});

}  // namespace oscar
