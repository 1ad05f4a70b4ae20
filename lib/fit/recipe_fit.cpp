// SPDX-License-Identifier: MIT
#include "fit/recipe_fit.hpp"

#include "base/errors.hpp"

namespace oscar {

void require_output_projection(const FitOptions& options, const OutputProjection& projection) {
  if (options.value_objective != "output" || projection) return;
  throw UsageError("no model is at hand, whose output projection values are to be weighed by",
                   "--value-objective output", "give --model instead of --dump, or use sst, oto or vtv");
}

TakePlan plan_of(const Recipe& recipe, const FitOptions& options, const ClipChoice& clip,
                 const OutputProjection& output_projection) {
  TakePlan plan{.moments = recipe.moments(), .windows = recipe.windows, .output_projection = output_projection};
  plan.clip = clip.sample_options();
  if (recipe.refine) plan.refine = options.refining;
  return plan;
}

std::vector<LayerRotation> transforms_of(std::span<const LayerData* const> layers, const Recipe& recipe,
                                         const RowCodec& key_codec, const RefineOptions& refining, Backend& backend,
                                         Status& status) {
  std::vector<const LayerMoments*> moments;
  std::vector<std::span<const SampledSequence>> samples;
  for (const LayerData* layer : layers) {
    moments.push_back(&layer->moments);
    samples.emplace_back(layer->refine);
  }
  std::vector<LayerRotation> fitted = solve(moments, recipe, backend, status);
  if (recipe.refine) refine_keys(samples, key_codec, recipe.windows, refining, fitted, backend, status);
  return fitted;
}

std::vector<const LayerData*> pointers_to(std::span<const LayerData> layers) {
  std::vector<const LayerData*> pointers;
  for (const LayerData& layer : layers) pointers.push_back(&layer);
  return pointers;
}

}  // namespace oscar
