// SPDX-License-Identifier: MIT
#include "rotation/serve_env.hpp"

#include <fmt/format.h>

#include "base/files.hpp"

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

/// The environment of OSCAR's branch of llama.cpp.
std::string llama_cpp_env(const RotationSet& set) {
  return fmt::format(
      "# Environment of OSCAR's branch of llama.cpp, whose GGUF must hold these rotations\n"
      "# Add to the command line: --cache-type-k q2_0 --cache-type-v q2_0\n"
      "LLAMA_KV_NO_HADAMARD=1\n"
      "LLAMA_KV_CLIP_RATIO={}\n"
      "LLAMA_KV_HP_SINK={}\n"
      "LLAMA_KV_HP_RECENT={}\n",
      set.key_clip_scalar, set.windows.sink, set.windows.recent);
}

}  // namespace

std::string key_pt_name(const RotationSet& set) { return "k_rotation_" + set.key_objective + ".pt"; }
std::string value_pt_name(const RotationSet& set) { return "v_rotation_" + set.value_objective + ".pt"; }

std::string serve_env(const RotationSet& set) {
  if (target_of(set) == "llamacpp") return llama_cpp_env(set);
  const std::string why_not = obstacle(set);
  if (!why_not.empty()) return "# OSCAR's SGLang cannot serve this set: " + why_not + ".\n";
  const int group = set.key_codec.group_size > 0 ? set.key_codec.group_size : set.layers.front().key.rotation.dim;
  const std::string beyond = beyond_version_1(set);
  const std::string needs =
      beyond.empty() ? "" : "# It needs a tree that reads rotation files of format version 3: " + beyond + ".\n";
  const std::string ratios = set.has_clip_ratios
                                 ? fmt::format("SGLANG_OSCAR_K_CLIP_RATIO={}\nSGLANG_OSCAR_V_CLIP_RATIO={}\n",
                                               set.key_clip_scalar, set.value_clip_scalar)
                                 : "# The files do not tell clip ratios; these are the published ones.\n"
                                   "SGLANG_OSCAR_K_CLIP_RATIO=0.96\nSGLANG_OSCAR_V_CLIP_RATIO=0.92\n";
  return needs +
         fmt::format(
             "# Environment of OSCAR's SGLang for this set; read it in bash with: set -a; source serve.env; set +a\n"
             "# Add to the command line: --kv-cache-dtype int2 --kv-cache-quant-group-size {group}\n"
             "#   --prefill-attention-backend fa3 --decode-attention-backend triton\n"
             "oscar_set=\"$(cd \"$(dirname \"${{BASH_SOURCE[0]}}\")\" && pwd)\"\n"
             "SGLANG_ENABLE_MIXED_KV_WINDOWS=1\n"
             "SGLANG_OSCAR_K_ROTATION_PATH=\"$oscar_set/{k}\"\n"
             "SGLANG_OSCAR_V_ROTATION_PATH=\"$oscar_set/{v}\"\n"
             "{ratios}"
             "SGLANG_OSCAR_ABSORB_V_ROTATION=1\n"
             "SGLANG_MIXED_KV_PREFIX_TOKENS={sink}\n"
             "SGLANG_MIXED_KV_RECENT_TOKENS={recent}\n"
             "SGLANG_MIXED_KV_HP_MAX_SPLITS=8\n"
             "SGLANG_MIXED_KV_HP_DTYPE=bfloat16\n"
             "SGLANG_MIXED_KV_SCALE_DTYPE={scale_dtype}\n"
             "SGLANG_LLOYD_MAX={lloyd_max}\n",
             fmt::arg("group", group), fmt::arg("k", key_pt_name(set)), fmt::arg("v", value_pt_name(set)),
             fmt::arg("ratios", ratios), fmt::arg("sink", set.windows.sink), fmt::arg("recent", set.windows.recent),
             fmt::arg("scale_dtype", name_of(set.key_codec.scale_dtype)),
             fmt::arg("lloyd_max", set.key_codec.grid == Grid::kLloydMax ? 1 : 0));
}

void write_clip_tables(const std::filesystem::path& folder, const RotationSet& set) {
  write_json(folder / "k_clip_per_layer.json", ratios_per_layer(set, &LayerRotation::key, set.key_clip_scalar));
  write_json(folder / "v_clip_per_layer.json", ratios_per_layer(set, &LayerRotation::value, set.value_clip_scalar));
  write_json(folder / "k_clip_per_head.json", ratios_per_head(set, &LayerRotation::key));
  write_json(folder / "v_clip_per_head.json", ratios_per_head(set, &LayerRotation::value));
}

}  // namespace oscar
