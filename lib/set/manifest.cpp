// SPDX-License-Identifier: MIT
#include "set/manifest.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/threads.hpp"
#include "base/version.hpp"
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

Json list_with_hashes(const std::filesystem::path& folder, const std::vector<std::filesystem::path>& files) {
  Json list(files.size(), nullptr);
  parallel_for(files.size(), [&](std::size_t i) {
    const std::filesystem::path file = folder / files[i];
    list[i] = {{"path", files[i].generic_string()}, {"sha256", sha256_file(file)}, {"size", regular_file_size(file)}};
  });
  return list;
}

Json describe_origin(const RotationPart& set, const std::string& format,
                     const std::vector<std::filesystem::path>& files) {
  Json list = Json::array();
  for (const auto& file : files) {
    list.push_back(
        {{"path", file.filename().string()}, {"sha256", sha256_file(file)}, {"size", regular_file_size(file)}});
  }
  const auto spectra = [&](const auto& layer) { return !layer.key.eigenvalues.empty(); };
  Json unknown{"recipe", "windows", "codec", "verification"};
  if (set.model.id.empty()) unknown.push_back("model");
  if (set.calibration.tokens == 0) unknown.push_back("calibration");
  if (!set.has_clip_ratios) unknown.push_back("clip_ratios");
  if (!std::all_of(set.layers.begin(), set.layers.end(), spectra)) unknown.push_back("eigenvalues");
  return {{"format", format}, {"files", std::move(list)}, {"unknown", std::move(unknown)}};
}

Json recipe_of(const RotationPart& set) {
  Json recipe = set.recipe;
  if (!recipe.contains("name")) recipe["name"] = "unknown";
  return recipe;
}

Json make_manifest(const RotationPart& set, Json files) {
  Json layers = Json::array();
  for (const LayerRotation& layer : set.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"head_dim", layer.key.rotation.dim},
                      {"key", side_to_json(layer.key, set.has_clip_ratios)},
                      {"value", side_to_json(layer.value, set.has_clip_ratios)}});
  }
  Json manifest{{"schema", "oscar.rotation_set.v1"},
                {"oscar_version", kVersion},
                {"model", to_json(set.model)},
                {"calibration", to_json(set.calibration)},
                {"recipe", recipe_of(set)},
                {"objectives", {{"key", set.key_objective}, {"value", set.value_objective}}},
                {"windows", {{"sink", set.windows.sink}, {"recent", set.windows.recent}}},
                {"codec",
                 {{"name", name_of(set.key_codec.grid)},
                  {"levels", {set.key_codec.levels, set.value_codec.levels}},
                  {"group_size", set.key_codec.group_size},
                  {"scale_dtype", name_of(set.key_codec.scale_dtype)},
                  {"clip_scalar", {{"key", set.key_clip_scalar}, {"value", set.value_clip_scalar}}}}},
                {"layers", std::move(layers)},
                {"files", std::move(files)},
                {"verification", set.verification}};
  if (!set.origin.is_null()) manifest["origin"] = set.origin;
  return manifest;
}

RotationPart set_from_manifest(const Json& manifest, const std::string& where) {
  if (manifest.is_object() && manifest.contains("schema") && manifest["schema"] == "oscar.rotation_set.v2") {
    throw DataError("this is a set of the coded cache, which has no rotations", where,
                    "use it with oscar verify, and with commands that say that they know coded sets");
  }
  validate_json(manifest, "oscar.rotation_set.v1", where);
  RotationPart set;
  set.model = model_identity_from_json(manifest["model"]);
  set.calibration = calibration_data_from_json(manifest["calibration"]);
  set.recipe = manifest["recipe"];
  set.key_objective = known_objective(manifest["objectives"]["key"], where);
  set.value_objective = known_objective(manifest["objectives"]["value"], where);
  set.windows = {manifest["windows"]["sink"], manifest["windows"]["recent"]};
  const Json& codec = manifest["codec"];
  set.key_codec = {.group_size = codec["group_size"],
                   .grid = grid_from_name(codec["name"].get<std::string>()),
                   .scale_dtype = dtype_from_name(codec["scale_dtype"].get<std::string>())};
  set.value_codec = set.key_codec;
  set.key_clip_scalar = codec["clip_scalar"]["key"];
  set.value_clip_scalar = codec["clip_scalar"]["value"];
  set.has_clip_ratios = true;
  for (const Json& layer : manifest["layers"]) {
    set.has_clip_ratios = set.has_clip_ratios && layer["key"]["clip_ratio"].is_number();
    set.layers.push_back({layer["layer_id"], side_from_json(layer["key"]), side_from_json(layer["value"])});
  }
  set.verification = manifest.value("verification", Json());
  set.origin = manifest.value("origin", Json());
  set.manifest = manifest;
  return set;
}

RequireOurs replaceable_set(bool replace) {
  if (!replace) return {};
  return [](const fs::path& folder) {
    std::set<fs::path> ours{"manifest.json", "signature.json"};
    try {
      const Json manifest = read_json(folder / "manifest.json");
      if (!manifest.at("schema").get<std::string>().starts_with("oscar.rotation_set.")) throw DataError("", "", "");
      for (const Json& file : manifest.at("files")) ours.insert(file.at("path").get<std::string>());
    } catch (const std::exception&) {
      throw UsageError("refusing to replace a folder that is not a rotation set", folder.string(),
                       "choose another output, or remove the folder yourself");
    }
    require_only(folder, ours, "a rotation set");
  };
}

void check_listed_files(const std::filesystem::path& folder, const Json& manifest) {
  for (const Json& entry : manifest["files"]) {
    const std::string name = entry["path"];
    const fs::path path = folder / name;
    const char* remedy = "fetch the set again with \"oscar pull\", or fit it again";
    if (!is_safe_relative_path(name)) throw DataError("the manifest lists an unsafe path", path.string(), remedy);
    if (regular_file_size(path) != entry["size"].get<std::uint64_t>()) {
      throw DataError("the file does not have the size its manifest says", path.string(), remedy);
    }
    if (sha256_file(path) != entry["sha256"].get<std::string>()) {
      throw DataError("the file does not have the sha256 its manifest says", path.string(), remedy);
    }
  }
}

}  // namespace oscar
