// SPDX-License-Identifier: MIT
#include "fit/fitted_layer.hpp"

#include <utility>

#include "base/errors.hpp"
#include "base/version.hpp"
#include "set/set_file.hpp"

namespace oscar {
namespace {

constexpr const char* kClipSample = "clip_sample";

void write_fitted(const std::filesystem::path& path, const FittedLayer& fitted, RotationPart alone) {
  alone.layers = {fitted.layer};
  alone.has_clip_ratios = true;
  if (!fitted.clip_sample.empty()) alone.recipe[kClipSample] = fitted.clip_sample;
  write_set_file(path, SetFileKind::kSafetensors, alone, true);
}

FittedLayer read_fitted(const std::filesystem::path& path, int layer_id) {
  RotationPart alone = read_set_file(path, SetFileKind::kSafetensors);
  if (alone.layers.size() != 1 || alone.layers.front().layer_id != layer_id) {
    throw DataError("this is not layer " + std::to_string(layer_id), path.string(), "remove it");
  }
  return {std::move(alone.layers.front()), alone.recipe.value(kClipSample, "")};
}

}  // namespace

RotationPart unfitted_set(const Recipe& recipe, const FitOptions& options) {
  return {.key_objective = recipe.key_name(),
          .value_objective = recipe.value_name(),
          .windows = options.windows,
          .key_codec = *recipe.codecs.key,
          .value_codec = *recipe.codecs.value,
          .recipe = to_json(recipe, options)};
}

RotationPart unfitted_set(const QkvSource& source, const FitOptions& options) {
  RotationPart set = unfitted_set(resolve_recipe(options), options);
  set.model = source.model();
  set.calibration = source.calibration();
  return set;
}

Json describe_fit(const RotationPart& unfitted, const FitOptions& options) {
  const SampleOptions& clip = options.clip_fit;
  return {{"oscar_version", kVersion},
          {"model", to_json(unfitted.model)},
          {"calibration", to_json(unfitted.calibration)},
          {"recipe", unfitted.recipe},
          {"windows", {unfitted.windows.sink, unfitted.windows.recent}},
          {"scale_dtype", name_of(unfitted.key_codec.scale_dtype)},
          {"clip_sample", {clip.sample_tokens, clip.max_sequence_tokens, clip.query_rows, clip.seed}}};
}

KeptLayers<FittedLayer> kept_fit(const PartialFolder* folder, RotationPart unfitted) {
  return {folder,
          [unfitted = std::move(unfitted)](const std::filesystem::path& path, const FittedLayer& fitted) {
            write_fitted(path, fitted, unfitted);
          },
          read_fitted};
}

void join(std::vector<FittedLayer> layers, const ClipChoice& clip, RotationPart& set) {
  for (FittedLayer& each : layers) set.layers.push_back(std::move(each.layer));
  clip.finish(layers.empty() ? "" : layers.back().clip_sample, set);
}

}  // namespace oscar
