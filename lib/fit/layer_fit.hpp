// SPDX-License-Identifier: MIT
// Rotations: which moments of a layer a recipe takes, and what it makes of those of many layers.
#pragma once

#include <optional>

#include "fit/fit.hpp"

namespace oscar {

/// The reference of recipe uresidual: its own rotations, by layer.
struct ReferenceRotation {
  std::vector<std::pair<int, SideTransform>> key, value;
};

/// Options, checked and resolved once per fit: ktk_vtv is oscar with other objectives.
struct Recipe {
  enum class Kind { kSpectral, kHadamard, kResidual } kind = Kind::kSpectral;
  std::string key_objective, value_objective;  // qqt | ktk, sst | oto | vtv
  std::string composition;
  bool per_head = false;
  /// "<objective>_<composition>", "hadamard" or "uresidual".
  [[nodiscard]] std::string key_name() const;
  [[nodiscard]] std::string value_name() const;
};

/// Throws UsageError.
[[nodiscard]] Recipe resolve_recipe(const FitOptions& options);

/// What must be read from a layer's data before any eigenproblem is solved; one matrix, or one per KV head.
struct LayerMoments {
  int layer_id = 0, key_dim = 0, value_dim = 0;
  MatrixStack key, value;                    // covariances; count 0 for recipe hadamard
  MatrixStack key_residual, value_residual;  // of recipe uresidual
};

[[nodiscard]] LayerMoments take_moments(int layer_id, LayerStream& layer, const Recipe& recipe,
                                        const ReferenceRotation& reference, Backend& backend);

/// Rotations, eigenvalues and covariances of layers, in order; matrices rounded to float32. Clip ratios are left at 0.
[[nodiscard]] std::vector<LayerRotation> fit_rotations(const std::vector<LayerMoments>& layers, const Recipe& recipe,
                                                       Backend& backend);

}  // namespace oscar
