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

constexpr const char* kRecord = "fit.json";

/// Names of the members that differ.
std::string differences(const Json& a, const Json& b) {
  std::string names;
  for (const auto& [name, value] : a.items()) {
    if (!b.contains(name) || b[name] != value) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

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

PartialSet::PartialSet(std::filesystem::path folder, const Json& of, Earlier earlier) : folder_(std::move(folder)) {
  if (earlier == Earlier::kLeave) return;
  const fs::path record = folder_ / kRecord;
  if (earlier == Earlier::kUse && fs::exists(record)) {
    const Json found = read_json(record);
    require(found, of);
    if (found != of) write_json(record, of);
    return;
  }
  if (fs::exists(folder_) && !fs::is_empty(folder_) && !fs::exists(record)) {
    throw DataError("this folder is not of an earlier fit", folder_.string(), "move it away, or choose another --out");
  }
  fs::remove_all(folder_);
  fs::create_directories(folder_);
  write_json(record, of);
}

bool PartialSet::is_of(const fs::path& folder, const Json& of) {
  const fs::path record = folder / kRecord;
  if (!fs::exists(record)) return false;
  Json wanted = of, there = read_json(record);
  for (Json* each : {&wanted, &there}) {
    if (each->is_object()) each->erase(kDataOfLayers);
  }
  return wanted == there;
}

void PartialSet::require(const Json& found, const Json& of) const {
  Json wanted = of, there = found.is_object() ? found : Json::object();
  const Json layers = wanted.value(kDataOfLayers, Json::object()), earlier = there.value(kDataOfLayers, Json::object());
  wanted.erase(kDataOfLayers);
  there.erase(kDataOfLayers);
  if (there != wanted) {
    throw DataError("what is left of an earlier fit is of another: " + differences(wanted, there) + " differ",
                    folder_.string(), "give that fit's data and options, or leave --resume out to begin again");
  }
  for (const auto& [id, print] : layers.items()) {
    if (!has(std::stoi(id)) || (earlier.contains(id) && earlier[id] == print)) continue;
    throw DataError("layer " + id + " is fitted already, to other data than the dump has now", folder_.string(),
                    "give the dump that it was fitted to, or leave --resume out to begin again");
  }
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
          {"reference_rotation", content_of(options.reference_rotation)},
          {"clip_sample", {clip.sample_tokens, clip.max_sequence_tokens, clip.query_rows, clip.seed}},
          {"refining", refining.steps}};
}

}  // namespace oscar
