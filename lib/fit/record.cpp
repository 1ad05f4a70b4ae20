// SPDX-License-Identifier: MIT
#include "fit/record.hpp"

#include "base/version.hpp"

namespace oscar {

RotationSet unfitted_set(const Recipe& recipe, const FitOptions& options) {
  return {.key_objective = recipe.key_name(),
          .value_objective = recipe.value_name(),
          .windows = options.windows,
          .key_codec = *recipe.codecs.key,
          .value_codec = *recipe.codecs.value,
          .recipe = to_json(recipe, options)};
}

RotationSet unfitted_set(const QkvSource& source, const FitOptions& options) {
  RotationSet set = unfitted_set(resolve_recipe(options), options);
  set.model = source.model();
  set.calibration = source.calibration();
  return set;
}

Json describe_fit(const RotationSet& unfitted, const FitOptions& options) {
  const SampleOptions& clip = options.clip_fit;
  return {{"oscar_version", kVersion},
          {"model", to_json(unfitted.model)},
          {"calibration", to_json(unfitted.calibration)},
          {"recipe", unfitted.recipe},
          {"windows", {unfitted.windows.sink, unfitted.windows.recent}},
          {"scale_dtype", name_of(unfitted.key_codec.scale_dtype)},
          {"clip_sample", {clip.sample_tokens, clip.max_sequence_tokens, clip.query_rows, clip.seed}}};
}

}  // namespace oscar
