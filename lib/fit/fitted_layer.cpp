// SPDX-License-Identifier: MIT
#include "fit/fitted_layer.hpp"

#include <utility>

#include "base/errors.hpp"
#include "rotation/set_file.hpp"

namespace oscar {
namespace {

constexpr const char* kClipSample = "clip_sample";

void write_fitted(const std::filesystem::path& path, const FittedLayer& fitted, RotationSet alone) {
  alone.layers = {fitted.layer};
  alone.has_clip_ratios = true;
  if (!fitted.clip_sample.empty()) alone.recipe[kClipSample] = fitted.clip_sample;
  write_set_file(path, SetFileKind::kSafetensors, alone, true);
}

FittedLayer read_fitted(const std::filesystem::path& path, int layer_id) {
  RotationSet alone = read_set_file(path, SetFileKind::kSafetensors);
  if (alone.layers.size() != 1 || alone.layers.front().layer_id != layer_id) {
    throw DataError("this is not layer " + std::to_string(layer_id), path.string(), "remove it");
  }
  return {std::move(alone.layers.front()), alone.recipe.value(kClipSample, "")};
}

}  // namespace

KeptLayers<FittedLayer> kept_fit(const PartialFolder* folder, RotationSet unfitted) {
  return {folder,
          [unfitted = std::move(unfitted)](const std::filesystem::path& path, const FittedLayer& fitted) {
            write_fitted(path, fitted, unfitted);
          },
          read_fitted};
}

void join(std::vector<FittedLayer> layers, const ClipChoice& clip, RotationSet& set) {
  for (FittedLayer& each : layers) set.layers.push_back(std::move(each.layer));
  clip.finish(layers.empty() ? "" : layers.back().clip_sample, set);
}

}  // namespace oscar
