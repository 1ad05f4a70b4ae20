// SPDX-License-Identifier: MIT
// Takes the sums that statistics_fit.hpp makes rotations of: of all of the data, or of what one of several processes
// has to take.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "fit/recipe.hpp"
#include "kernels/backend.hpp"
#include "moments/blocks.hpp"
#include "moments/statistics.hpp"
#include "work/partial_folder.hpp"

namespace oscar {

/// The recipe, if sums are all that it needs; throws UsageError if it looks at rows.
[[nodiscard]] Recipe recipe_of_sums(const FitOptions& options);

/// What one process takes of a layer.
struct LayerShare {
  int layer_id = 0;
  BlockRange blocks;
  friend bool operator==(const LayerShare&, const LayerShare&) = default;
};

/// The blocks of all layers in line, cut into `size` equal runs: what rank `rank` takes. blocks: of a layer; a layer
/// that has more has them in its last share, one that has fewer leaves that empty.
[[nodiscard]] std::vector<LayerShare> shares_of(const std::vector<int>& layers, std::int64_t blocks, int rank,
                                                int size);

class StatisticsTaker {
 public:
  /// first_pass: null for the first pass; or the sums of all data's first passes, for sst alone. All must outlive this.
  /// Throws UsageError for recipes that need rows, DataError if the first pass is not of this data.
  StatisticsTaker(QkvSource& source, const FitOptions& options, const Statistics* first_pass, Backend& backend,
                  Status& status);

  /// Everything but layers.
  [[nodiscard]] const Statistics& untaken() const { return untaken_; }
  /// untaken() with this layer.
  [[nodiscard]] Statistics alone(LayerStatistics layer) const;

  /// sums: of a share that begins its layer, one, over all of its blocks; of any other one for each block, in order, to
  /// be added to what comes before them (add_block). Called from any thread.
  using Taken = std::function<void(std::size_t share, std::vector<LayerStatistics> sums)>;
  void take(std::span<const LayerShare> shares, const Taken& taken);
  /// All layers.
  [[nodiscard]] Statistics take_all();

 private:
  [[nodiscard]] LayerStatistics take_blocks(int id, LayerStream& stream) const;

  QkvSource& source_;
  Recipe recipe_;
  const Statistics* first_pass_;
  Backend& backend_;
  Status& status_;
  Statistics untaken_;
};

/// The blocks of a layer that follow.
void add_block(LayerStatistics& sums, const LayerStatistics& next);

/// Layers whose sums are taken, in a folder: statistics of one layer each, and pieces of some that are shared.
class PartialStatistics : public PartialFolder {
 public:
  using PartialFolder::PartialFolder;
  explicit PartialStatistics(PartialFolder folder) : PartialFolder(std::move(folder)) {}

  /// From any thread, each layer once.
  void add(const Statistics& one_layer) const;
  [[nodiscard]] std::filesystem::path file_of_piece(const LayerShare& share, std::size_t piece) const;
  /// Adds up the pieces, in order, and keeps the layer in their place.
  void join_pieces(const std::vector<std::filesystem::path>& pieces) const;
  /// All layers as one. Throws DataError if one is missing or damaged.
  [[nodiscard]] Statistics join(const std::vector<int>& layers) const;
};

}  // namespace oscar
