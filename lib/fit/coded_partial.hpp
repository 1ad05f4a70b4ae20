// SPDX-License-Identifier: MIT
// What a fit of the coded cache has taken already, in a folder: a file of statistics of each layer alone, and one of
// what errors cost in all of them, which is asked before any layer is read.
#pragma once

#include <functional>
#include <map>

#include "fit/coded_fit.hpp"
#include "work/partial_folder.hpp"

namespace oscar {

/// Returns all that decides what is taken; bits and scopes do not. recipe: CodedData::recipe.
[[nodiscard]] Json describe_coded_data(const QkvSource& source, Windows windows, const Json& recipe);

class PartialCodedData : public PartialFolder {
 public:
  /// of: describe_coded_data().
  using PartialFolder::PartialFolder;
  explicit PartialCodedData(PartialFolder folder) : PartialFolder(std::move(folder)) {}

  /// Throws DataError if it is missing or damaged.
  [[nodiscard]] CodedLayerData read(int layer_id) const;
  /// about: what it was taken of.
  void add(const CodedLayerData& layer, const CodedData& about) const;
  /// By its name PartialFolder checks it and takes it away as it does layers.
  [[nodiscard]] std::filesystem::path file_of_costs() const { return path() / "layer_costs.safetensors"; }
  /// Returns what was kept, or what `ask` returns, which is kept then.
  [[nodiscard]] std::map<int, ErrorCost> costs(const std::function<std::map<int, ErrorCost>()>& ask) const;
};

}  // namespace oscar
