// SPDX-License-Identifier: MIT
// Fits by statistics: sums over parts of the data are taken layer by layer and kept, added up (moments/statistics.hpp),
// and made into rotations once. Clip ratios and recipe auto look at rows, which statistics do not keep.
#pragma once

#include "base/status.hpp"
#include "fit/fit.hpp"
#include "fit/kept_layers.hpp"
#include "fit/options.hpp"
#include "kernels/backend.hpp"
#include "moments/statistics.hpp"

namespace oscar {

/// Returns the recipe, if sums are all that it needs; throws UsageError if it looks at rows.
[[nodiscard]] Recipe recipe_of_sums(const FitOptions& options);

/// Takes the sums of all layers. first_pass: null for the first pass; or the sums of all data's first passes, for kSst
/// alone. folder: where layers that are there already are taken from, and the others kept, a file of statistics each;
/// or null. Throws UsageError for recipes that need rows, DataError if the first pass is not of this data.
[[nodiscard]] Statistics take_statistics(QkvSource& source, const FitOptions& options, const Statistics* first_pass,
                                         const PartialFolder* folder, Backend& backend, Status& status);

/// Throws UsageError for recipes that need rows, DataError that says which sums are missing and how to take them, or
/// which layers were taken of other data.
[[nodiscard]] FitResult fit(const Statistics& statistics, const FitOptions& options, Backend& backend, Status& status);

}  // namespace oscar
