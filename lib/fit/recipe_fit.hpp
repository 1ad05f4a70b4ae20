// SPDX-License-Identifier: MIT
// One recipe, applied to layers: what it needs of their rows, and what it makes of that.
#pragma once

#include <span>
#include <vector>

#include "base/status.hpp"
#include "fit/clip_choice.hpp"
#include "fit/layer_data.hpp"
#include "fit/options.hpp"

namespace oscar {

/// Throws UsageError if the options ask for value objective output where no model is at hand.
void require_output_projection(const FitOptions& options, const OutputProjection& projection);

/// Returns what a fit by one recipe takes of each layer.
[[nodiscard]] TakePlan plan_of(const Recipe& recipe, const FitOptions& options, const ClipChoice& clip,
                               const OutputProjection& output_projection);

/// Returns the transforms of layers, refined if the recipe says so, without clip ratios. key_codec: of keys, with which
/// they are refined.
[[nodiscard]] std::vector<LayerRotation> transforms_of(std::span<const LayerData* const> layers, const Recipe& recipe,
                                                       const RowCodec& key_codec, const RefineOptions& refining,
                                                       Backend& backend, Status& status);

[[nodiscard]] std::vector<const LayerData*> pointers_to(std::span<const LayerData> layers);

}  // namespace oscar
