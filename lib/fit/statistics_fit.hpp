// SPDX-License-Identifier: MIT
// Fits in parts: sums are taken of each part of the data, anywhere (take_statistics.hpp), added up, and made into
// rotations once. Clip ratios and recipe auto look at rows, which statistics do not keep.
#pragma once

#include "fit/fit.hpp"
#include "moments/statistics.hpp"

namespace oscar {

/// Throws UsageError for recipes that need rows, DataError that says which sums are missing and how to take them, or
/// which layers were taken of other data.
[[nodiscard]] FitResult fit(const Statistics& statistics, const FitOptions& options, Backend& backend, Status& status);

}  // namespace oscar
