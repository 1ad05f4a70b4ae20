// SPDX-License-Identifier: MIT
// Layers that are fitted already, in a folder, one file each: a set of one layer.
#pragma once

#include "fit/recipe.hpp"
#include "rotation/rotation_set.hpp"
#include "work/partial_folder.hpp"

namespace oscar {

class PartialSet : public PartialFolder {
 public:
  /// of: describe_fit().
  using PartialFolder::PartialFolder;
  explicit PartialSet(PartialFolder folder) : PartialFolder(std::move(folder)) {}

  /// The layer, in a set of its own. Throws DataError if it is missing or damaged.
  [[nodiscard]] RotationSet read(int layer_id) const;
  /// From any thread, each layer once.
  void add(const RotationSet& one_layer) const;
};

/// All that decides a fit's result: the set without layers tells the model and the data.
[[nodiscard]] Json describe_fit(const RotationSet& unfitted, const FitOptions& options);

}  // namespace oscar
