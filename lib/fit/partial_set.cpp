// SPDX-License-Identifier: MIT
#include "fit/partial_set.hpp"

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/version.hpp"
#include "rotation/formats.hpp"
#include "rotation/set_file.hpp"

namespace oscar {
namespace {

/// Of the rotations in a file or folder, wherever it lies; "" without one.
std::string content_of(const fs::path& reference) {
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

RotationSet PartialSet::read(int layer_id) const {
  RotationSet set = read_set_file(file_of(layer_id), SetFileKind::kSafetensors);
  if (set.layers.size() == 1 && set.layers.front().layer_id == layer_id) return set;
  throw DataError("this is not layer " + std::to_string(layer_id), file_of(layer_id).string(), "remove it");
}

void PartialSet::add(const RotationSet& one_layer) const {
  OSCAR_CHECK(one_layer.layers.size() == 1);
  write_set_file(file_of(one_layer.layers.front().layer_id), SetFileKind::kSafetensors, one_layer, true);
}

Json describe_fit(const RotationSet& unfitted, const FitOptions& options) {
  const ClipFitOptions& clip = options.clip_fit;
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
