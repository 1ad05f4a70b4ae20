// SPDX-License-Identifier: MIT
#include "coded/coded_manifest.hpp"

#include "base/files.hpp"
#include "base/version.hpp"
#include "kernels/reference/coded_row.hpp"

namespace oscar {
namespace {

/// What people want to see of a side without opening the matrices.
Json describe(const CodedSide& side) {
  Json bytes = Json::array(), widest = Json::array();
  for (const CodedFormat& format : side.formats) {
    bytes.push_back(reference::coded_row_bytes(format));
    widest.push_back(format.levels.front());
  }
  return {{"bits", bits_of(side)},
          {"row_bytes", std::move(bytes)},
          {"most_levels", std::move(widest)},
          {"damage", side.damage}};
}

}  // namespace

bool is_coded_set(const std::filesystem::path& folder) {
  const std::filesystem::path manifest = folder / "manifest.json";
  if (!std::filesystem::is_regular_file(manifest)) return false;
  const Json json = read_json(manifest);
  return json.is_object() && json.contains("schema") && json["schema"] == kCodedSchema;
}

Json coded_manifest(const CodedSet& set, Json files) {
  Json layers = Json::array();
  for (const CodedLayer& layer : set.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"head_dim", layer.key.transform.rotation.dim},
                      {"value_dim", layer.value.transform.rotation.dim},
                      {"key", describe(layer.key)},
                      {"value", describe(layer.value)}});
  }
  return {{"schema", kCodedSchema},
          {"oscar_version", kVersion},
          {"model", to_json(set.model)},
          {"calibration", to_json(set.calibration)},
          {"recipe", set.recipe},
          {"windows", {{"sink", set.windows.sink}, {"recent", set.windows.recent}}},
          {"codec", {{"name", "coded"}, {"bits", set.bits}, {"bits_taken", bits_of(set)}, {"scope", set.scope}}},
          {"layers", std::move(layers)},
          {"files", std::move(files)},
          {"verification", set.verification}};
}

CodedSet coded_set_from_manifest(const Json& manifest, const std::string& where) {
  validate_json(manifest, kCodedSchema, where);
  CodedSet set;
  set.model = model_identity_from_json(manifest["model"]);
  set.calibration = calibration_data_from_json(manifest["calibration"]);
  set.windows = {manifest["windows"]["sink"], manifest["windows"]["recent"]};
  set.bits = manifest["codec"]["bits"];
  set.scope = manifest["codec"]["scope"];
  set.recipe = manifest["recipe"];
  set.verification = manifest.value("verification", Json());
  for (const Json& layer : manifest["layers"]) {
    CodedLayer& added = set.layers.emplace_back();
    added.layer_id = layer["layer_id"];
    added.key.damage = layer["key"]["damage"], added.value.damage = layer["value"]["damage"];
  }
  return set;
}

}  // namespace oscar
