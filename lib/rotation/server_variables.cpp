// SPDX-License-Identifier: MIT
// Names of variables were read in FutureMLS-Lab/OSCAR: main at 473ff3f (2026-06-01), main at 00b29b8 (October 2026, on
// SGLang's nightly of 2026-10-02), main at 2911dd3 (later in October), and zhongzhu/llamacpp at 4570ea6 (2026-06-01).
#include "rotation/server_variables.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace oscar {
namespace {

/// Files of others say nothing of a target: today's tree reads all three format versions.
std::string target_of(const RotationSet& set) {
  return set.recipe.is_object() ? set.recipe.value("target", set.origin.is_null() ? "sglang-v1" : "sglang-v3")
                                : "sglang-v1";
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

bool one_matrix_per_layer(const SideTransform& side) {
  return side.rotation.count == 1 && side.read_rotation.count == 0;
}

bool names_latents(const ServedFiles& files) {
  return std::ranges::any_of(files, [](const auto& file) { return file.first.starts_with("layer_"); });
}

/// A read side or a mean, which format version 3 has.
bool has_companions(const RotationSet& set) {
  const auto any = [](const SideTransform& side) { return side.read_rotation.count > 0 || !side.mean.empty(); };
  return std::ranges::any_of(set.layers, [&](const auto& layer) { return any(layer.key) || any(layer.value); });
}

/// Groups of head_dim where the set names none; of latent rows the published ones.
int group_of(const RotationSet& set) {
  constexpr int kPublishedLatentGroup = 128;
  if (set.key_codec.group_size > 0) return set.key_codec.group_size;
  int dim = set.layers.front().key.rotation.dim;
  for (const LayerRotation& layer : set.layers) dim = std::min(dim, layer.key.rotation.dim);
  return is_latent(set) && dim % kPublishedLatentGroup == 0 ? kPublishedLatentGroup : dim;
}

std::vector<ServerVariable> llama_cpp_variables(const RotationSet& set) {
  return {{"LLAMA_KV_NO_HADAMARD", "1"},
          {"LLAMA_KV_CLIP_RATIO", fmt::format("{}", set.key_clip_scalar)},
          {"LLAMA_KV_HP_SINK", std::to_string(set.windows.sink)},
          {"LLAMA_KV_HP_RECENT", std::to_string(set.windows.recent)}};
}

/// Of an MLA model: without ..._PACKED the server rounds to 2 bits and stores bfloat16.
std::vector<ServerVariable> latent_variables(const RotationSet& set) {
  return {{"SGLANG_ENABLE_MIXED_KV_WINDOWS", "1"},
          {"SGLANG_OSCAR_MLA_KV_ROTATION_PATH", ".", true},
          {"SGLANG_OSCAR_MLA_KV_GROUP_SIZE", std::to_string(group_of(set))},
          {"SGLANG_OSCAR_MLA_KV_PACKED", "1"},
          {"SGLANG_MIXED_KV_PREFIX_TOKENS", std::to_string(set.windows.sink)},
          {"SGLANG_MIXED_KV_RECENT_TOKENS", std::to_string(set.windows.recent)},
          {"SGLANG_LLOYD_MAX", set.key_codec.grid == Grid::kLloydMax ? "1" : "0"}};
}

/// The published clip ratios stand where the files do not tell any. Values' matrices go into W_O only where a layer has
/// one, which undoes itself by its transpose.
std::vector<ServerVariable> sglang_variables(const RotationSet& set, bool means) {
  const auto ratio = [&](double own, double published) {
    return fmt::format("{}", set.has_clip_ratios ? own : published);
  };
  const bool absorb = std::ranges::all_of(set.layers, [](const auto& l) { return one_matrix_per_layer(l.value); });
  std::vector<ServerVariable> variables{
      {"SGLANG_ENABLE_MIXED_KV_WINDOWS", "1"},
      {"SGLANG_OSCAR_K_ROTATION_PATH", key_pt_name(set), true},
      {"SGLANG_OSCAR_V_ROTATION_PATH", value_pt_name(set), true},
      {"SGLANG_OSCAR_K_CLIP_RATIO", ratio(set.key_clip_scalar, 0.96)},
      {"SGLANG_OSCAR_V_CLIP_RATIO", ratio(set.value_clip_scalar, 0.92)},
      {"SGLANG_OSCAR_ABSORB_V_ROTATION", absorb ? "1" : "0"},
      {"SGLANG_MIXED_KV_PREFIX_TOKENS", std::to_string(set.windows.sink)},
      {"SGLANG_MIXED_KV_RECENT_TOKENS", std::to_string(set.windows.recent)},
      {"SGLANG_MIXED_KV_HP_MAX_SPLITS", "8"},
      {"SGLANG_MIXED_KV_HP_DTYPE", "bfloat16"},
      {"SGLANG_MIXED_KV_SCALE_DTYPE", std::string(name_of(set.key_codec.scale_dtype))},
      {"SGLANG_LLOYD_MAX", set.key_codec.grid == Grid::kLloydMax ? "1" : "0"}};
  if (means) {
    variables.push_back({"SGLANG_OSCAR_K_MEAN_PATH", kKeyMeansName, true});
    variables.push_back({"SGLANG_OSCAR_K_MEAN_IN_POOL", "1"});
  }
  return variables;
}

}  // namespace

bool for_llama_cpp(const RotationSet& set) { return target_of(set) == "llamacpp"; }

std::string server_obstacle(const RotationSet& set) {
  if (for_llama_cpp(set)) return {};
  const std::string beyond = beyond_version_1(set);
  if (!is_latent(set) && !beyond.empty() && target_of(set) != "sglang-v3") {
    return beyond + ", and the server takes one rotation per layer";
  }
  if (set.key_codec.grid == Grid::kLeastSquares) {
    return "the codec is lsq, and the server writes min/max or Lloyd-Max codes";
  }
  if (!is_latent(set) && set.key_codec.grid == Grid::kLloydMax && !serves_lloyd_max(set)) {
    return "the server writes Lloyd-Max codes only for whole clipped heads: groups of head_dim, clip ratios above 0";
  }
  if (set.key_codec.levels != 4 || set.value_codec.levels != 4) {
    return fmt::format("keys have {} levels and values {}, and the server has 4", set.key_codec.levels,
                       set.value_codec.levels);
  }
  return {};
}

std::vector<ServerVariable> server_variables(const RotationSet& set, const ServedFiles& files) {
  if (for_llama_cpp(set)) return llama_cpp_variables(set);
  return names_latents(files) ? latent_variables(set) : sglang_variables(set, files.contains(kKeyMeansName));
}

std::vector<std::string> server_arguments(const RotationSet& set) {
  if (for_llama_cpp(set)) return {"--cache-type-k q2_0 --cache-type-v q2_0"};
  if (is_latent(set)) return {"--kv-cache-dtype bfloat16"};
  return {fmt::format("--kv-cache-dtype int2 --kv-cache-quant-group-size {}", group_of(set)),
          "--prefill-attention-backend fa3 --decode-attention-backend triton"};
}

std::vector<std::string> server_notes(const RotationSet& set, const ServedFiles& files) {
  if (for_llama_cpp(set)) return {"The variables were read in FutureMLS-Lab/OSCAR, zhongzhu/llamacpp at 4570ea6."};
  std::vector<std::string> notes{
      "The variables were read in FutureMLS-Lab/OSCAR, main at 00b29b8 (SGLang's nightly of 2026-10-02).",
      "Trees from main at 00b29b8 on calibrate themselves, without a word, where they do not find their rotations."};
  if (names_latents(files)) {
    notes.emplace_back(
        "Trees that do not know SGLANG_OSCAR_MLA_KV_ROTATION_PATH, _GROUP_SIZE and _PACKED, as main at 473ff3f "
        "(2026-06-01), serve an exact cache.");
    if (has_companions(set)) {
      notes.emplace_back("Means and read sides of latent rows are read by main at 2911dd3; older trees stop at start.");
    }
    return notes;
  }
  if (const std::string beyond = beyond_version_1(set); !beyond.empty()) {
    notes.push_back(fmt::format("It needs a tree that reads rotation files of format version {}: {}.",
                                has_companions(set) ? 3 : 2, beyond));
  }
  if (files.contains(kKeyMeansName)) {
    notes.emplace_back(
        "Trees that do not know SGLANG_OSCAR_K_MEAN_PATH and SGLANG_OSCAR_K_MEAN_IN_POOL, as main at 473ff3f "
        "(2026-06-01) and at 00b29b8, ignore them; main at 2911dd3 reads the means in the .pt file.");
  }
  return notes;
}

}  // namespace oscar
