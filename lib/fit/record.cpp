// SPDX-License-Identifier: MIT
#include "fit/record.hpp"

#include <span>
#include <string>

#include "base/sha256.hpp"
#include "base/version.hpp"
#include "rotation/formats.hpp"

namespace oscar {
namespace {

/// Of the rotations in a file or folder, wherever it lies; "" without one.
std::string content_of(const std::filesystem::path& reference) {
  if (reference.empty()) return "";
  Sha256 hash;
  for (const LayerRotation& layer : read_rotation_set(reference).layers) {
    hash.update(std::as_bytes(std::span(&layer.layer_id, 1)));
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      hash.update(std::as_bytes(std::span(side->rotation.data)));
    }
  }
  return hash.hex();
}

}  // namespace

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
  const RefineOptions& refining = options.refining;
  return {{"oscar_version", kVersion},
          {"model", to_json(unfitted.model)},
          {"calibration", to_json(unfitted.calibration)},
          {"recipe", unfitted.recipe},
          {"windows", {unfitted.windows.sink, unfitted.windows.recent}},
          {"scale_dtype", name_of(unfitted.key_codec.scale_dtype)},
          {"reference_rotation", content_of(options.reference_rotation)},
          {"clip_sample", {clip.sample_tokens, clip.max_sequence_tokens, clip.query_rows, clip.seed}},
          {"refining", refining.steps}};
}

}  // namespace oscar
