// SPDX-License-Identifier: MIT
// What a set, and a fit that can go on, say of how they came about.
#pragma once

#include "base/json.hpp"
#include "dump/source.hpp"
#include "fit/options.hpp"
#include "rotation/rotation_set.hpp"

namespace oscar {

/// Returns a set with everything but its origin and its layers.
[[nodiscard]] RotationSet unfitted_set(const Recipe& recipe, const FitOptions& options);
/// Returns a set with everything but its layers. Throws UsageError as resolve_recipe() does.
[[nodiscard]] RotationSet unfitted_set(const QkvSource& source, const FitOptions& options);
/// Returns all that decides a fit's result. unfitted: tells the model and the data.
[[nodiscard]] Json describe_fit(const RotationSet& unfitted, const FitOptions& options);

}  // namespace oscar
