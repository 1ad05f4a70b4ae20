// SPDX-License-Identifier: MIT
#include "fit/partial_set.hpp"

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/version.hpp"
#include "rotation/set_file.hpp"

namespace oscar {
namespace {

/// Names of the members that differ.
std::string differences(const Json& a, const Json& b) {
  std::string names;
  for (const auto& [name, value] : a.items()) {
    if (!b.contains(name) || b[name] != value) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

}  // namespace

PartialSet::PartialSet(std::filesystem::path folder, const Json& of, Earlier earlier) : folder_(std::move(folder)) {
  if (earlier == Earlier::kLeave) return;
  const fs::path record = folder_ / "fit.json";
  if (earlier == Earlier::kUse && fs::exists(record)) {
    const Json found = read_json(record);
    if (found == of) return;
    throw DataError("what is left of an earlier fit is of another: " + differences(of, found) + " differ",
                    folder_.string(), "give that fit's data and options, or leave --resume out to begin again");
  }
  if (fs::exists(folder_) && !fs::is_empty(folder_) && !fs::exists(record)) {
    throw DataError("this folder is not of an earlier fit", folder_.string(), "move it away, or choose another --out");
  }
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  write_json(record, of);
}

std::filesystem::path PartialSet::file_of(int layer_id) const {
  return folder_ / ("layer_" + std::to_string(layer_id) + ".safetensors");
}

bool PartialSet::has(int layer_id) const { return fs::exists(file_of(layer_id)); }

RotationSet PartialSet::read(int layer_id) const {
  RotationSet set = read_set_file(file_of(layer_id), SetFileKind::kSafetensors);
  if (set.layers.size() == 1 && set.layers.front().layer_id == layer_id) return set;
  throw DataError("this is not layer " + std::to_string(layer_id), file_of(layer_id).string(), "remove it");
}

void PartialSet::add(const RotationSet& one_layer) const {
  OSCAR_CHECK(one_layer.layers.size() == 1);
  write_set_file(file_of(one_layer.layers.front().layer_id), SetFileKind::kSafetensors, one_layer, true);
}

void PartialSet::remove() const { fs::remove_all(folder_); }

Json describe_fit(const RotationSet& unfitted, const FitOptions& options) {
  const ClipFitOptions& clip = options.clip_fit;
  const RefineOptions& refining = options.refining;
  return {{"oscar_version", kVersion},
          {"model", to_json(unfitted.model)},
          {"calibration", to_json(unfitted.calibration)},
          {"recipe", unfitted.recipe},
          {"windows", {unfitted.windows.sink, unfitted.windows.recent}},
          {"scale_dtype", name_of(unfitted.key_codec.scale_dtype)},
          {"reference_rotation", options.reference_rotation.string()},
          {"clip_sample", {clip.sample_tokens, clip.max_sequence_tokens, clip.query_rows, clip.seed}},
          {"refining", refining.steps}};
}

}  // namespace oscar
