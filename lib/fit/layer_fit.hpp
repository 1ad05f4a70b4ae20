// SPDX-License-Identifier: MIT
// One layer's rotations: which moments a recipe takes, and what it makes of them.
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

/// Rotations, eigenvalues and covariances of a layer; matrices rounded to float32. Clip ratios are left at 0.
[[nodiscard]] LayerRotation fit_layer(int layer_id, LayerStream& layer, const Recipe& recipe,
                                      const ReferenceRotation& reference, Backend& backend);

}  // namespace oscar
