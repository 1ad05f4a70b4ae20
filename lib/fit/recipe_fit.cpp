// SPDX-License-Identifier: MIT
#include "fit/recipe_fit.hpp"

#include "base/errors.hpp"

namespace oscar {

void require_output_projection(const FitOptions& options, const OutputProjection& projection) {
  if (options.value_objective != "output" || projection) return;
  throw UsageError("no model is at hand, whose output projection values are to be weighed by",
                   "--value-objective output", "give --model instead of --dump, or use sst, oto or vtv");
}

TakePlan plan_of(const Recipe& recipe, const ClipChoice& clip, const OutputProjection& output_projection) {
  TakePlan plan{.moments = recipe.moments(), .windows = recipe.windows, .output_projection = output_projection};
  plan.clip = clip.sample_options();
  return plan;
}

}  // namespace oscar
