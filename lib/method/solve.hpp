// SPDX-License-Identifier: MIT
// What a fit does to each layer, and the eigenproblems of it: a recipe has every choice that the mathematics knows, and
// none about data or servers.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "kernels/backend.hpp"
#include "kernels/mixed_sequence.hpp"
#include "method/compose.hpp"
#include "moments/sums.hpp"
#include "set/rotation_part.hpp"

namespace oscar {

struct Recipe {
  enum class Kind {
    kSpectral,  // keys are rotated by the eigenvectors of the key objective, values by those of sst
    kHadamard,  // no moments at all
    kStretch    // the best linear transform of keys (method/stretch.hpp)
  } kind = Kind::kSpectral;
  /// The name by which people asked for it: "oscar", "stretch" …
  std::string name;
  Moment key_objective = Moment::kQqt;  // or kFisher
  Composition composition = Composition::kRHPbr;
  /// One matrix per KV head instead of one per layer.
  bool key_per_head = false, value_per_head = false;
  /// Of keys, one clip ratio per KV head instead of one per layer.
  bool key_clip_per_head = false;
  /// Each head's mean key is subtracted from every key.
  bool center = false;
  double stretch_power = 1, stretch_lambda = 1e-2;
  HistoryCodecs codecs;  // both are set; clip ratios are fitted or fixed elsewhere
  Windows windows;

  /// "<objective>_<composition>", with "stretch_" before it where it applies; "hadamard".
  [[nodiscard]] std::string key_name() const;
  [[nodiscard]] std::string value_name() const;
  /// Returns the moments that must be known before anything is solved. kKeys stands for sums of keys, for their mean.
  [[nodiscard]] std::set<Moment> moments() const;
};

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
