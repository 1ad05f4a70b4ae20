// SPDX-License-Identifier: MIT
#include "rotation/serve_env.hpp"

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/sha256.hpp"

namespace oscar {
namespace {

std::string target_of(const RotationSet& set) {
  return set.recipe.is_object() ? set.recipe.value("target", "sglang-v1") : "sglang-v1";
}

/// What a tree that reads format version 1 only lacks for the set; empty if nothing.
std::string beyond_version_1(const RotationSet& set) {
  for (const LayerRotation& layer : set.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      const auto has = [&](const char* what) { return fmt::format("layer {} has {}", layer.layer_id, what); };
      if (side->read_rotation.count > 0) return has("a read side of its own");
      if (!side->mean.empty()) return has("a mean key");
      if (side->rotation.count != 1) return has("one rotation per head");
    }
  }
  return {};
}

bool serves_lloyd_max(const RotationSet& set) {
  const int group = set.key_codec.group_size, dim = set.layers.front().key.rotation.dim;
  return (group == 0 || group == dim) && set.key_clip_scalar > 0 && set.value_clip_scalar > 0;
}

/// Why OSCAR's SGLang cannot serve the set; empty if it can.
std::string obstacle(const RotationSet& set) {
  const std::string beyond = beyond_version_1(set);
  if (!beyond.empty() && target_of(set) != "sglang-v3") {
    return beyond + ", and the server takes one rotation per layer";
  }
  if (set.key_codec.grid == Grid::kLeastSquares) {
    return "the codec is lsq, and the server writes min/max or Lloyd-Max codes";
  }
  if (set.key_codec.grid == Grid::kLloydMax && !serves_lloyd_max(set)) {
    return "the server writes Lloyd-Max codes only for whole clipped heads: groups of head_dim, clip ratios above 0";
  }
  if (set.key_codec.levels != 4 || set.value_codec.levels != 4) {
    return fmt::format("keys have {} levels and values {}, and the server has 4", set.key_codec.levels,
                       set.value_codec.levels);
  }
  return {};
}

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

/// A line of the environment. A file's value is its name in the set's folder.
struct Variable {
  std::string name, value;
  bool is_file = false;
};

/// For OSCAR's branch of llama.cpp.
std::vector<Variable> llama_cpp_variables(const RotationSet& set) {
  return {{"LLAMA_KV_NO_HADAMARD", "1"},
          {"LLAMA_KV_CLIP_RATIO", fmt::format("{}", set.key_clip_scalar)},
          {"LLAMA_KV_HP_SINK", std::to_string(set.windows.sink)},
          {"LLAMA_KV_HP_RECENT", std::to_string(set.windows.recent)}};
}

/// For OSCAR's SGLang; the published clip ratios where the files do not tell any.
std::vector<Variable> sglang_variables(const RotationSet& set) {
  const auto ratio = [&](double own, double published) {
    return fmt::format("{}", set.has_clip_ratios ? own : published);
  };
  return {{"SGLANG_ENABLE_MIXED_KV_WINDOWS", "1"},
          {"SGLANG_OSCAR_K_ROTATION_PATH", key_pt_name(set), true},
          {"SGLANG_OSCAR_V_ROTATION_PATH", value_pt_name(set), true},
          {"SGLANG_OSCAR_K_CLIP_RATIO", ratio(set.key_clip_scalar, 0.96)},
          {"SGLANG_OSCAR_V_CLIP_RATIO", ratio(set.value_clip_scalar, 0.92)},
          {"SGLANG_OSCAR_ABSORB_V_ROTATION", "1"},
          {"SGLANG_MIXED_KV_PREFIX_TOKENS", std::to_string(set.windows.sink)},
          {"SGLANG_MIXED_KV_RECENT_TOKENS", std::to_string(set.windows.recent)},
          {"SGLANG_MIXED_KV_HP_MAX_SPLITS", "8"},
          {"SGLANG_MIXED_KV_HP_DTYPE", "bfloat16"},
          {"SGLANG_MIXED_KV_SCALE_DTYPE", std::string(name_of(set.key_codec.scale_dtype))},
          {"SGLANG_LLOYD_MAX", set.key_codec.grid == Grid::kLloydMax ? "1" : "0"}};
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

}  // namespace

std::string key_pt_name(const RotationSet& set) { return "k_rotation_" + set.key_objective + ".pt"; }
std::string value_pt_name(const RotationSet& set) { return "v_rotation_" + set.value_objective + ".pt"; }

ServedFiles served_files(const RotationSet& set) {
  ServedFiles files;
  for (const Json& file : set.manifest.value("files", Json::array())) {
    const std::string name = file["path"];
    if (name == key_pt_name(set) || name == value_pt_name(set)) files[name] = file["sha256"].get<std::string>();
  }
  return files;
}

ServedFiles hash_served_files(const std::filesystem::path& folder, const RotationSet& set) {
  ServedFiles files;
  for (const std::string& name : {key_pt_name(set), value_pt_name(set)}) files[name] = sha256_file(folder / name);
  return files;
}

std::vector<std::string> server_arguments(const RotationSet& set) {
  if (target_of(set) == "llamacpp") return {"--cache-type-k q2_0 --cache-type-v q2_0"};
  const int group = set.key_codec.group_size > 0 ? set.key_codec.group_size : set.layers.front().key.rotation.dim;
  return {fmt::format("--kv-cache-dtype int2 --kv-cache-quant-group-size {}", group),
          "--prefill-attention-backend fa3 --decode-attention-backend triton"};
}

std::string serve_env(const RotationSet& set, const ServedFiles& files) {
  const bool llama_cpp = target_of(set) == "llamacpp";
  const std::string why_not = llama_cpp ? "" : obstacle(set), beyond = beyond_version_1(set);
  if (!why_not.empty()) return "# OSCAR's SGLang cannot serve this set: " + why_not + ".\n";
  std::string text;
  if (!llama_cpp && !beyond.empty()) {
    text = "# It needs a tree that reads rotation files of format version 3: " + beyond + ".\n";
  }
  text += llama_cpp ? "# Environment of OSCAR's branch of llama.cpp, whose GGUF must hold these rotations\n"
                    : "# Environment of OSCAR's SGLang for this set; read it in bash with: set -a; source serve.env; "
                      "set +a\n";
  const char* start = "# Add to the command line: ";
  for (const std::string& arguments : server_arguments(set)) {
    text += start + arguments + "\n";
    start = "#   ";
  }
  if (llama_cpp) {
    for (const Variable& each : llama_cpp_variables(set)) text += each.name + "=" + each.value + "\n";
    return text;
  }
  text += "oscar_set=\"$(cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\"\n" + check_of(files);
  for (const Variable& each : sglang_variables(set)) {
    if (!set.has_clip_ratios && each.name == "SGLANG_OSCAR_K_CLIP_RATIO") {
      text += "# The files do not tell clip ratios; these are the published ones.\n";
    }
    text += each.name + "=" + (each.is_file ? "\"$oscar_set/" + each.value + "\"" : each.value) + "\n";
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> serve_variables(const RotationSet& set,
                                                                 const std::filesystem::path& folder) {
  const bool llama_cpp = target_of(set) == "llamacpp";
  const std::string why_not = llama_cpp ? "" : obstacle(set);
  if (!why_not.empty()) {
    throw DataError("OSCAR's SGLang cannot serve this set: " + why_not, folder.string(),
                    "fit a set for it: oscar fit --target sglang-v1");
  }
  std::vector<std::pair<std::string, std::string>> variables;
  for (const Variable& each : llama_cpp ? llama_cpp_variables(set) : sglang_variables(set)) {
    variables.emplace_back(each.name,
                           each.is_file ? (std::filesystem::absolute(folder) / each.value).string() : each.value);
  }
  return variables;
}

std::map<std::string, Json> clip_tables(const RotationSet& set) {
  if (!set.has_clip_ratios) return {};
  return {{"k_clip_per_layer.json", ratios_per_layer(set, &LayerRotation::key, set.key_clip_scalar)},
          {"v_clip_per_layer.json", ratios_per_layer(set, &LayerRotation::value, set.value_clip_scalar)},
          {"k_clip_per_head.json", ratios_per_head(set, &LayerRotation::key)},
          {"v_clip_per_head.json", ratios_per_head(set, &LayerRotation::value)}};
}

}  // namespace oscar
