// SPDX-License-Identifier: MIT
// Layers that are fitted already, in a folder, one file each: what a fit that ends early leaves to the next one, and
// what several processes make together. Each file is whole or absent; all of them are of one fit, which the folder
// names.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "fit/recipe.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

class PartialSet {
 public:
  /// What to do with a folder that is there already: use its layers, which must be of this fit; begin again; or leave
  /// it as the process made it that shares the folder.
  enum class Earlier { kUse, kReplace, kLeave };

  /// Member of `of` with a fingerprint for each layer, which only layers that are there already must share: another may
  /// have been mended since.
  static constexpr const char* kDataOfLayers = "data_of_layers";

  /// `of`: describe_fit(). Throws DataError if earlier layers are to be used and are of another fit, or if the folder
  /// holds something else.
  PartialSet(std::filesystem::path folder, const Json& of, Earlier earlier);
  /// Whether layers of this fit are there already.
  [[nodiscard]] static bool is_of(const std::filesystem::path& folder, const Json& of);

  [[nodiscard]] std::filesystem::path file_of(int layer_id) const;
  [[nodiscard]] bool has(int layer_id) const;
  /// The layer, in a set of its own. Throws DataError if it is missing or damaged.
  [[nodiscard]] RotationSet read(int layer_id) const;
  /// From any thread, each layer once.
  void add(const RotationSet& one_layer) const;
  /// Once the whole set is written.
  void remove() const;

 private:
  /// Throws DataError if what is there is of another fit than `of`.
  void require(const Json& found, const Json& of) const;

  std::filesystem::path folder_;
};

/// All that decides a fit's result: the set without layers tells the model and the data.
[[nodiscard]] Json describe_fit(const RotationSet& unfitted, const FitOptions& options);

}  // namespace oscar
