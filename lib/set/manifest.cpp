// SPDX-License-Identifier: MIT
#include "set/manifest.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/version.hpp"
#include "kernels/reference/coded_row.hpp"
#include "set/names.hpp"

namespace oscar {
namespace {

Json side_to_json(const SideTransform& side, bool has_clip_ratios) {
  Json json;
  json["clip_ratio"] = has_clip_ratios ? Json(side.clip_ratio) : Json(nullptr);
  if (!side.head_clip_ratios.empty()) json["clip_ratio_per_head"] = side.head_clip_ratios;
  json["eigenvalues"] = summarize_spectrum(side);
  json["scores"] = side.scores;
  return json;
}

SideTransform side_from_json(const Json& json) {
  SideTransform side;
  if (json["clip_ratio"].is_number()) side.clip_ratio = json["clip_ratio"];
  side.head_clip_ratios = json.value("clip_ratio_per_head", std::vector<double>());
  side.scores = json.value("scores", Json::object());
  return side;
}

/// What people want to see of a side without opening the matrices.
Json side_to_json(const CodedSide& side) {
  Json bytes = Json::array(), widest = Json::array();
  for (const CodedFormat& format : side.formats) {
    bytes.push_back(reference::coded_row_bytes(format));
    widest.push_back(format.levels.front());
  }
  return {{"bits", bits_of(side)}, {"row_bytes", std::move(bytes)}, {"most_levels", std::move(widest)}};
}

Json part_to_json(const RotationPart& part) {
  Json layers = Json::array();
  for (const LayerRotation& layer : part.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"head_dim", layer.key.rotation.dim},
                      {"key", side_to_json(layer.key, part.has_clip_ratios)},
                      {"value", side_to_json(layer.value, part.has_clip_ratios)}});
  }
  return {{"recipe", recipe_of(part.recipe)},
          {"objectives", {{"key", part.key_objective}, {"value", part.value_objective}}},
          {"codec",
           {{"name", name_of(part.key_codec.grid)},
            {"levels", {part.key_codec.levels, part.value_codec.levels}},
            {"group_size", part.key_codec.group_size},
            {"scale_dtype", name_of(part.key_codec.scale_dtype)},
            {"clip_scalar", {{"key", part.key_clip_scalar}, {"value", part.value_clip_scalar}}}}},
          {"layers", std::move(layers)}};
}

Json part_to_json(const CodedPart& part) {
  Json layers = Json::array();
  std::vector<Rotary> turns;  // most layers turn alike
  for (const CodedLayer& layer : part.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"head_dim", layer.key.transform.rotation.dim},
                      {"value_dim", layer.value.transform.rotation.dim},
                      {"key", side_to_json(layer.key)},
                      {"value", side_to_json(layer.value)}});
    if (!layer.key.rotary) continue;
    const auto found = std::ranges::find(turns, *layer.key.rotary);
    layers.back()["key"]["rotary"] = found - turns.begin();
    if (found == turns.end()) turns.push_back(*layer.key.rotary);
  }
  Json json{{"recipe", part.recipe},
            {"codec", {{"name", "coded"}, {"bits", bits_of(part)}, {"scope", part.scope}}},
            {"layers", std::move(layers)}};
  for (const Rotary& each : turns) json["rotary"].push_back(to_json(each));
  return json;
}

RotationPart rotations_from_json(const Json& json, const std::string& where) {
  RotationPart part;
  part.recipe = json["recipe"];
  part.key_objective = known_objective(json["objectives"]["key"], where);
  part.value_objective = known_objective(json["objectives"]["value"], where);
  const Json& codec = json["codec"];
  part.key_codec = {.group_size = codec["group_size"],
                    .grid = grid_from_name(codec["name"].get<std::string>()),
                    .scale_dtype = dtype_from_name(codec["scale_dtype"].get<std::string>())};
  part.value_codec = part.key_codec;
  part.key_clip_scalar = codec["clip_scalar"]["key"];
  part.value_clip_scalar = codec["clip_scalar"]["value"];
  part.has_clip_ratios = true;
  for (const Json& layer : json["layers"]) {
    part.has_clip_ratios = part.has_clip_ratios && layer["key"]["clip_ratio"].is_number();
    part.layers.push_back({layer["layer_id"], side_from_json(layer["key"]), side_from_json(layer["value"])});
  }
  return part;
}

CodedPart coded_from_json(const Json& json, const std::string& where) {
  CodedPart part;
  part.recipe = json["recipe"];
  part.scope = json["codec"]["scope"];
  for (const Json& layer : json["layers"]) {
    CodedLayer& added = part.layers.emplace_back();
    added.layer_id = layer["layer_id"];
    if (layer["key"].contains("rotary")) {
      const auto turn = layer["key"]["rotary"].get<std::size_t>();
      if (!json.contains("rotary") || turn >= json["rotary"].size()) {
        throw DataError("layer " + std::to_string(added.layer_id) + " turns keys in a way that is not listed", where,
                        "fit the set again");
      }
      added.key.rotary = rotary_from_json(json["rotary"][turn], where);
    }
  }
  return part;
}

}  // namespace

Json summarize_spectrum(const SideTransform& side) {
  if (side.eigenvalues.empty()) return nullptr;
  const auto dim = static_cast<std::size_t>(side.rotation.dim);
  double sum = 0, rank = 0;
  for (std::size_t begin = 0; begin < side.eigenvalues.size(); begin += dim) {
    double total = 0, entropy = 0;
    for (std::size_t i = begin; i < begin + dim; ++i) total += std::max(side.eigenvalues[i], 0.0);
    for (std::size_t i = begin; i < begin + dim; ++i) {
      const double share = total > 0 ? side.eigenvalues[i] / total : 0;
      if (share > 0) entropy -= share * std::log(share);
      sum += side.eigenvalues[i];
    }
    rank += std::exp(entropy);
  }
  const auto [low, high] = std::minmax_element(side.eigenvalues.begin(), side.eigenvalues.end());
  return {{"min", *low},
          {"max", *high},
          {"mean", sum / static_cast<double>(side.eigenvalues.size())},
          {"effective_rank", rank * static_cast<double>(dim) / static_cast<double>(side.eigenvalues.size())}};
}

Json describe_origin(const RotationPart& set, const std::string& format, const std::vector<fs::path>& files,
                     bool has_codec) {
  Json list = Json::array();
  for (const auto& file : files) {
    list.push_back(
        {{"path", file.filename().string()}, {"sha256", sha256_file(file)}, {"size", regular_file_size(file)}});
  }
  const auto spectra = [&](const auto& layer) { return !layer.key.eigenvalues.empty(); };
  Json unknown{"recipe", "windows", "verification"};
  if (!has_codec) unknown.push_back("codec");
  if (set.model.id.empty()) unknown.push_back("model");
  if (set.calibration.tokens == 0) unknown.push_back("calibration");
  if (!set.has_clip_ratios) unknown.push_back("clip_ratios");
  if (!std::all_of(set.layers.begin(), set.layers.end(), spectra)) unknown.push_back("eigenvalues");
  return {{"format", format}, {"files", std::move(list)}, {"unknown", std::move(unknown)}};
}

Json recipe_of(Json recipe) {
  if (!recipe.contains("name")) recipe["name"] = "unknown";
  return recipe;
}

Json make_manifest(const Set& set, Json files) {
  Json parts;
  if (set.coded) parts[kCodedName] = part_to_json(*set.coded);
  for (const auto& [name, part] : set.rotations) parts[name] = part_to_json(part);
  Json manifest{{"schema", kSetSchema},
                {"oscar_version", kVersion},
                {"model", to_json(set.model)},
                {"calibration", to_json(set.calibration)},
                {"windows", {{"sink", set.windows.sink}, {"recent", set.windows.recent}}},
                {"recipe", recipe_of(set.recipe)},
                {"readers", parts_of_readers(set)},
                {"parts", std::move(parts)},
                {"files", std::move(files)},
                {"verification", set.verification}};
  if (!set.origin.is_null()) manifest["origin"] = set.origin;
  return manifest;
}

Set set_from_manifest(const Json& manifest, const std::string& where) {
  validate_json(manifest, kSetSchema, where);
  Set set;
  set.model = model_identity_from_json(manifest["model"]);
  set.calibration = calibration_data_from_json(manifest["calibration"]);
  set.windows = {manifest["windows"]["sink"], manifest["windows"]["recent"]};
  set.recipe = manifest["recipe"];
  for (const auto& [name, part] : manifest["readers"].items()) set.readers.push_back(name);
  set.verification = manifest.value("verification", Json());
  set.origin = manifest.value("origin", Json());
  set.manifest = manifest;
  const auto add_common = [&](auto part) {
    part.model = set.model, part.calibration = set.calibration, part.windows = set.windows;
    return part;
  };
  for (const auto& [name, json] : manifest["parts"].items()) {
    if (name == kCodedName) {
      set.coded = add_common(coded_from_json(json, where));
      continue;
    }
    RotationPart& part = set.rotations[name] = add_common(rotations_from_json(json, where));
    part.latent = set.origin.is_object() && set.origin["format"] == kLatentFormat;
  }
  return set;
}

Set set_of_one_file(const std::string& manifest, const std::string& where) {
  Set set = set_from_manifest(parse_json(manifest, where), where);
  if (!set.coded && set.rotations.size() == 1) return set;
  throw DataError("the manifest in the file is of other parts than one of rotations", where, "convert the set again");
}

RequireOurs replaceable_set(bool replace) {
  if (!replace) return {};
  return [](const fs::path& folder) {
    std::set<fs::path> ours{"manifest.json", "signature.json"};
    try {
      const Json manifest = read_json(folder / "manifest.json");
      if (!manifest.at("schema").get<std::string>().starts_with("oscar.set.")) throw DataError("", "", "");
      for (const Json& file : manifest.at("files")) ours.insert(file.at("path").get<std::string>());
    } catch (const std::exception&) {
      throw UsageError("refusing to replace a folder that is not a set of oscar", folder.string(),
                       "choose another output, or remove the folder yourself");
    }
    require_only(folder, ours, "a set");
  };
}

}  // namespace oscar
