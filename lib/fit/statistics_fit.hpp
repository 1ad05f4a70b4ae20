// SPDX-License-Identifier: MIT
// Fits in parts: sums are taken of each part of the data, anywhere, added up, and made into rotations once. Clip
// ratios, refinement and recipe auto look at rows, which statistics do not keep.
#pragma once

#include "fit/fit.hpp"
#include "stats/statistics.hpp"

namespace oscar {

/// What options' recipe needs of the source's data, but sst; or, given the sums of all data's first passes, sst alone.
/// Throws UsageError for recipes that need rows.
[[nodiscard]] Statistics take_statistics(QkvSource& source, const FitOptions& options, const Statistics* first_pass,
                                         Backend& backend, Status& status);

/// Throws UsageError for recipes that need rows, DataError that says which sums are missing and how to take them, or
/// which layers were taken of other data.
[[nodiscard]] FitResult fit(const Statistics& statistics, const FitOptions& options, Backend& backend, Status& status);

}  // namespace oscar
