// SPDX-License-Identifier: MIT
// Takes the sums that statistics_fit.hpp makes rotations of.
#pragma once

#include <span>

#include "base/status.hpp"
#include "fit/kept_layers.hpp"
#include "fit/options.hpp"
#include "kernels/backend.hpp"
#include "moments/statistics.hpp"

namespace oscar {

/// Returns the recipe, if sums are all that it needs; throws UsageError if it looks at rows.
[[nodiscard]] Recipe recipe_of_sums(const FitOptions& options);

class StatisticsTaker {
 public:
  /// first_pass: null for the first pass; or the sums of all data's first passes, for kSst alone. All must outlive
  /// this. Throws UsageError for recipes that need rows, DataError if the first pass is not of this data.
  StatisticsTaker(QkvSource& source, const FitOptions& options, const Statistics* first_pass, Backend& backend,
                  Status& status);

  /// Returns everything but layers.
  [[nodiscard]] const Statistics& untaken() const { return untaken_; }
  /// Returns the statistics of all layers. kept: where those that are there already are taken from, and the others
  /// kept, a file of statistics each; or null.
  [[nodiscard]] Statistics take_all(const PartialFolder* kept = nullptr);

 private:
  [[nodiscard]] KeptLayers<LayerStatistics> keeper(const PartialFolder* folder) const;

  QkvSource& source_;
  Recipe recipe_;
  const Statistics* first_pass_;
  Backend& backend_;
  Status& status_;
  Statistics untaken_;
};

}  // namespace oscar
