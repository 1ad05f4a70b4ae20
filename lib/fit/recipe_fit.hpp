// SPDX-License-Identifier: MIT
// One recipe, applied to layers: what it needs of their rows, and what it makes of that.
#pragma once

#include "fit/clip_choice.hpp"
#include "fit/layer_data.hpp"
#include "fit/options.hpp"

namespace oscar {

/// Throws UsageError if the options ask for value objective output where no model is at hand.
void require_output_projection(const FitOptions& options, const OutputProjection& projection);

/// Returns what a fit by one recipe takes of each layer.
[[nodiscard]] TakePlan plan_of(const Recipe& recipe, const ClipChoice& clip, const OutputProjection& output_projection);

}  // namespace oscar
