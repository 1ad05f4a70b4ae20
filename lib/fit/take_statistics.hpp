// SPDX-License-Identifier: MIT
// Takes the sums that statistics_fit.hpp makes rotations of.
#pragma once

#include "base/status.hpp"
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

}  // namespace oscar
