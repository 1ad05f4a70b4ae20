// SPDX-License-Identifier: MIT
#include "rotation/serve_env.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/sha256.hpp"
#include "rotation/server_variables.hpp"

namespace oscar {
namespace {

Json ratios_per_layer(const RotationSet& set, const SideTransform LayerRotation::*side, double scalar) {
  Json list = Json::array();
  for (const LayerRotation& layer : set.layers) {
    while (list.size() < static_cast<std::size_t>(layer.layer_id)) list.push_back(scalar);
    list.push_back((layer.*side).clip_ratio);
  }
  return list;
}

Json ratios_per_head(const RotationSet& set, const SideTransform LayerRotation::*side) {
  Json ratios = Json::object();
  for (const LayerRotation& layer : set.layers) {
    for (int head = 0; head < set.model.num_key_value_heads; ++head) {
      ratios[fmt::format("{},{}", layer.layer_id, head)] = (layer.*side).clipped({}).of_head(head).clip_ratio;
    }
  }
  return ratios;
}

/// Lines that end the sourcing where a file is not what it was.
std::string check_of(const ServedFiles& files) {
  if (files.empty()) return "";
  std::string list;
  for (const auto& [name, hash] : files) list += hash + "  " + name + "\n";
  return "(cd \"$oscar_set\" && sha256sum --check --quiet) <<'FILES' || "
         "{ echo \"serve.env: the files of this set are missing or changed; pull it again\" >&2; return 1; }\n" +
         list + "FILES\n";
}

/// What servers load, by name.
std::vector<std::string> served_names(const RotationSet& set) {
  std::vector<std::string> names{key_pt_name(set), value_pt_name(set)};
  if (is_latent(set)) names.clear();
  for (const LayerRotation& layer : set.layers) {
    if (is_latent(set)) names.push_back(latent_pt_name(layer.layer_id));
  }
  if (!is_latent(set) && has_key_means(set)) names.emplace_back(kKeyMeansName);
  return names;
}

std::string why_not_served(const RotationSet& set) {
  const std::string obstacle = server_obstacle(set);
  return obstacle.empty() ? obstacle : "OSCAR's SGLang cannot serve this set: " + obstacle;
}

}  // namespace

std::string key_pt_name(const RotationSet& set) { return "k_rotation_" + set.key_objective + ".pt"; }
std::string value_pt_name(const RotationSet& set) { return "v_rotation_" + set.value_objective + ".pt"; }
std::string latent_pt_name(int layer_id) { return fmt::format("layer_{}.pt", layer_id); }

bool is_latent(const RotationSet& set) { return set.origin.is_object() && set.origin.value("format", "") == "mla"; }

bool has_key_means(const RotationSet& set) {
  return std::ranges::any_of(set.layers, [](const auto& layer) { return !layer.key.mean.empty(); });
}

ServedFiles served_files(const RotationSet& set) {
  const std::vector<std::string> names = served_names(set);
  ServedFiles files;
  for (const Json& file : set.manifest.value("files", Json::array())) {
    const std::string name = file["path"];
    if (std::ranges::find(names, name) != names.end()) files[name] = file["sha256"].get<std::string>();
  }
  return files;
}

ServedFiles hash_served_files(const std::filesystem::path& folder, const RotationSet& set) {
  ServedFiles files;
  for (const std::string& name : served_names(set)) files[name] = sha256_file(folder / name);
  return files;
}

std::string serve_env(const RotationSet& set, const ServedFiles& files) {
  if (const std::string why_not = why_not_served(set); !why_not.empty()) return "# " + why_not + ".\n";
  const bool llama_cpp = for_llama_cpp(set);
  std::string text = llama_cpp ? "# Environment of OSCAR's branch of llama.cpp, whose GGUF must hold these rotations\n"
                               : "# Environment of OSCAR's SGLang for this set; read it in bash with: set -a; source "
                                 "serve.env; set +a\n";
  for (const std::string& note : server_notes(set, files)) text += "# " + note + "\n";
  const char* start = "# Add to the command line: ";
  for (const std::string& arguments : server_arguments(set)) {
    text += start + arguments + "\n";
    start = "#   ";
  }
  if (!llama_cpp) text += "oscar_set=\"$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\"\n" + check_of(files);
  for (const ServerVariable& each : server_variables(set, files)) {
    if (!set.has_clip_ratios && each.name == "SGLANG_OSCAR_K_CLIP_RATIO") {
      text += "# The files do not tell clip ratios; these are the published ones.\n";
    }
    const std::string path = each.value == "." ? "" : "/" + each.value;
    text += each.name + "=" + (each.is_file ? "\"$oscar_set" + path + "\"" : each.value) + "\n";
  }
  return text;
}

ServerSettings server_settings(const RotationSet& set, const std::filesystem::path& folder) {
  if (const std::string why_not = why_not_served(set); !why_not.empty()) {
    throw DataError(why_not, folder.string(), "fit a set for it: oscar fit --target sglang-v1");
  }
  const ServedFiles files = served_files(set);
  ServerSettings settings{{}, server_arguments(set), server_notes(set, files)};
  const std::filesystem::path here = std::filesystem::absolute(folder);
  for (const ServerVariable& each : server_variables(set, files)) {
    const std::filesystem::path path = each.value == "." ? here : here / each.value;
    settings.environment.emplace_back(each.name, each.is_file ? path.string() : each.value);
  }
  return settings;
}

std::map<std::string, Json> clip_tables(const RotationSet& set) {
  if (!set.has_clip_ratios) return {};
  return {{"k_clip_per_layer.json", ratios_per_layer(set, &LayerRotation::key, set.key_clip_scalar)},
          {"v_clip_per_layer.json", ratios_per_layer(set, &LayerRotation::value, set.value_clip_scalar)},
          {"k_clip_per_head.json", ratios_per_head(set, &LayerRotation::key)},
          {"v_clip_per_head.json", ratios_per_head(set, &LayerRotation::value)}};
}

}  // namespace oscar
