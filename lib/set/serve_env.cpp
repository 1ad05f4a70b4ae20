// SPDX-License-Identifier: MIT
#include "set/serve_env.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "set/formats.hpp"

namespace oscar {
namespace {

/// A line of the environment. A file's value is its name in the set's folder; "." is the folder.
struct ServerVariable {
  std::string name, value;
  bool is_file = false;
};

bool one_matrix_per_layer(const SideTransform& side) {
  return side.rotation.count == 1 && side.read_rotation.count == 0;
}

bool names_latents(const ServedFiles& files) {
  return std::ranges::any_of(files, [](const auto& file) { return file.first.starts_with("layer_"); });
}

bool needs_version_3(const RotationPart& set) {
  return std::max(lowest_pt_version(set, &LayerRotation::key), lowest_pt_version(set, &LayerRotation::value)) == 3;
}

/// Groups of head_dim where the set names none; of latent rows the published ones.
int group_of(const RotationPart& set) {
  constexpr int kPublishedLatentGroup = 128;
  if (set.key_codec.group_size > 0) return set.key_codec.group_size;
  int dim = set.layers.front().key.rotation.dim;
  for (const LayerRotation& layer : set.layers) dim = std::min(dim, layer.key.rotation.dim);
  return set.latent && dim % kPublishedLatentGroup == 0 ? kPublishedLatentGroup : dim;
}

/// Of keys and of values; the published ones where the files do not tell any.
std::pair<double, double> clip_ratios(const RotationPart& set) {
  return set.has_clip_ratios ? std::pair{set.key_clip_scalar, set.value_clip_scalar} : std::pair{0.96, 0.92};
}

std::vector<ServerVariable> llama_cpp_variables(const RotationPart& set) {
  return {{"LLAMA_KV_NO_HADAMARD", "1"},
          {"LLAMA_KV_CLIP_RATIO", fmt::format("{}", clip_ratios(set).first)},
          {"LLAMA_KV_HP_SINK", std::to_string(set.windows.sink)},
          {"LLAMA_KV_HP_RECENT", std::to_string(set.windows.recent)}};
}

/// Of an MLA model: without ..._PACKED the server rounds to 2 bits and stores bfloat16.
std::vector<ServerVariable> latent_variables(const RotationPart& set) {
  return {{"SGLANG_ENABLE_MIXED_KV_WINDOWS", "1"},
          {"SGLANG_OSCAR_MLA_KV_ROTATION_PATH", ".", true},
          {"SGLANG_OSCAR_MLA_KV_GROUP_SIZE", std::to_string(group_of(set))},
          {"SGLANG_OSCAR_MLA_KV_PACKED", "1"},
          {"SGLANG_MIXED_KV_PREFIX_TOKENS", std::to_string(set.windows.sink)},
          {"SGLANG_MIXED_KV_RECENT_TOKENS", std::to_string(set.windows.recent)},
          {"SGLANG_LLOYD_MAX", set.key_codec.grid == Grid::kLloydMax ? "1" : "0"}};
}

/// Values' matrices go into W_O only where a layer has one, which undoes itself by its transpose.
std::vector<ServerVariable> sglang_variables(const RotationPart& set, bool means) {
  const bool absorb = std::ranges::all_of(set.layers, [](const auto& l) { return one_matrix_per_layer(l.value); });
  std::vector<ServerVariable> variables{
      {"SGLANG_ENABLE_MIXED_KV_WINDOWS", "1"},
      {"SGLANG_OSCAR_K_ROTATION_PATH", key_pt_name(set), true},
      {"SGLANG_OSCAR_V_ROTATION_PATH", value_pt_name(set), true},
      {"SGLANG_OSCAR_K_CLIP_RATIO", fmt::format("{}", clip_ratios(set).first)},
      {"SGLANG_OSCAR_V_CLIP_RATIO", fmt::format("{}", clip_ratios(set).second)},
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

/// Else the server is OSCAR's SGLang.
bool is_llama_cpp(const Reader& server) { return server.name == "llamacpp"; }

/// files: what lies in the part's folder for servers. Means and latent rotations are named if they are among them.
std::vector<ServerVariable> server_variables(const RotationPart& part, const Reader& server, const ServedFiles& files) {
  if (is_llama_cpp(server)) return llama_cpp_variables(part);
  return names_latents(files) ? latent_variables(part) : sglang_variables(part, files.contains(kKeyMeansName));
}

std::vector<std::string> server_arguments(const RotationPart& part, const Reader& server) {
  if (is_llama_cpp(server)) return {"--cache-type-k q2_0 --cache-type-v q2_0"};
  if (part.latent) return {"--kv-cache-dtype bfloat16"};
  return {fmt::format("--kv-cache-dtype int2 --kv-cache-quant-group-size {}", group_of(part)),
          "--prefill-attention-backend fa3 --decode-attention-backend triton"};
}

/// Whole sentences: which tree the variables were read from, and what an older one does not know.
std::vector<std::string> server_notes(const RotationPart& part, const Reader& server, const ServedFiles& files) {
  if (is_llama_cpp(server)) return {"The variables were read in FutureMLS-Lab/OSCAR, zhongzhu/llamacpp at 4570ea6."};
  std::vector<std::string> notes{
      "The variables were read in FutureMLS-Lab/OSCAR, main at 00b29b8 (SGLang's nightly of 2026-10-02).",
      "Trees from main at 00b29b8 on calibrate themselves, without a word, where they do not find their rotations."};
  if (names_latents(files)) {
    notes.emplace_back(
        "Trees that do not know SGLANG_OSCAR_MLA_KV_ROTATION_PATH, _GROUP_SIZE and _PACKED, as main at 473ff3f "
        "(2026-06-01), serve an exact cache.");
    if (needs_version_3(part)) {
      notes.emplace_back("Means and read sides of latent rows are read by main at 2911dd3; older trees stop at start.");
    }
    return notes;
  }
  if (const std::string beyond = beyond_reader(reader_from_name("sglang-v1", ""), part); !beyond.empty()) {
    notes.push_back(fmt::format("It needs a tree that reads rotation files of format version {}: {}.",
                                needs_version_3(part) ? 3 : 2, beyond));
  }
  if (files.contains(kKeyMeansName)) {
    notes.emplace_back(
        "Trees that do not know SGLANG_OSCAR_K_MEAN_PATH and SGLANG_OSCAR_K_MEAN_IN_POOL, as main at 473ff3f "
        "(2026-06-01) and at 00b29b8, ignore them; main at 2911dd3 reads the means in the .pt file.");
  }
  return notes;
}

Json ratios_per_layer(const RotationPart& set, const SideTransform LayerRotation::*side, double scalar) {
  Json list = Json::array();
  for (const LayerRotation& layer : set.layers) {
    while (list.size() < static_cast<std::size_t>(layer.layer_id)) list.push_back(scalar);
    list.push_back((layer.*side).clip_ratio);
  }
  return list;
}

Json ratios_per_head(const RotationPart& set, const SideTransform LayerRotation::*side) {
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
std::vector<std::string> served_names(const RotationPart& set) {
  std::vector<std::string> names{key_pt_name(set), value_pt_name(set)};
  if (set.latent) names.clear();
  for (const LayerRotation& layer : set.layers) {
    if (set.latent) names.push_back(latent_pt_name(layer.layer_id));
  }
  if (!set.latent && has_key_means(set)) names.emplace_back(kKeyMeansName);
  return names;
}

/// A server that does not find a file calibrates itself without a word.
void require_served(const RotationPart& part, const ServedFiles& files, const std::string& server,
                    const fs::path& folder) {
  for (const std::string& name : served_names(part)) {
    if (files.contains(name)) continue;
    throw DataError("the set has no .pt files for " + server, (folder / name).string(),
                    "convert it with --format pt,h5");
  }
}

}  // namespace

std::string key_pt_name(const RotationPart& set) { return "k_rotation_" + set.key_objective + ".pt"; }
std::string value_pt_name(const RotationPart& set) { return "v_rotation_" + set.value_objective + ".pt"; }
std::string latent_pt_name(int layer_id) { return fmt::format("layer_{}.pt", layer_id); }

bool has_key_means(const RotationPart& set) {
  return std::ranges::any_of(set.layers, [](const auto& layer) { return !layer.key.mean.empty(); });
}

ServedFiles served_files(const Set& set, const std::string& part) {
  ServedFiles listed, files;
  for (const Json& file : set.manifest.value("files", Json::array())) listed[file["path"]] = file["sha256"];
  for (const std::string& name : served_names(set.rotations.at(part))) {
    const auto found = listed.find(folder_of_part(part) + name);
    if (found != listed.end()) files[name] = found->second;
  }
  return files;
}

const Reader* server_of_part(const Set& set, const std::string& part) {
  const std::vector<std::string> own = readers_of_part(set, part);
  for (const char* name : {"sglang-v1", "sglang", "llamacpp"}) {
    if (std::ranges::count(own, name) > 0) return &reader_from_name(name, "");
  }
  return nullptr;
}

ServedFiles hash_served_files(const fs::path& folder, const RotationPart& set) {
  ServedFiles files;
  for (const std::string& name : served_names(set)) files[name] = sha256_file(folder / name);
  return files;
}

std::string serve_env(const RotationPart& part, const Reader& server, const ServedFiles& files) {
  const bool llama_cpp = is_llama_cpp(server);
  std::string text = llama_cpp ? "# Environment of OSCAR's branch of llama.cpp, whose GGUF must hold these rotations\n"
                               : "# Environment of OSCAR's SGLang for this set; read it in bash with: set -a; source "
                                 "serve.env; set +a\n";
  for (const std::string& note : server_notes(part, server, files)) text += "# " + note + "\n";
  const char* start = "# Add to the command line: ";
  for (const std::string& arguments : server_arguments(part, server)) {
    text += start + arguments + "\n";
    start = "#   ";
  }
  if (!llama_cpp) text += "oscar_set=\"$(CDPATH= cd \"$(dirname \"${BASH_SOURCE[0]}\")\" && pwd)\"\n" + check_of(files);
  for (const ServerVariable& each : server_variables(part, server, files)) {
    if (!part.has_clip_ratios && (each.name == "SGLANG_OSCAR_K_CLIP_RATIO" || each.name == "LLAMA_KV_CLIP_RATIO")) {
      text += "# The files do not tell clip ratios; these are the published ones.\n";
    }
    const std::string path = each.value == "." ? "" : "/" + each.value;
    text += each.name + "=" + (each.is_file ? "\"$oscar_set" + path + "\"" : each.value) + "\n";
  }
  return text;
}

ServerSettings server_settings(const Set& set, const std::string& server, const fs::path& folder) {
  const auto parts = parts_of_readers(set);
  std::string name = server;
  for (const std::string& known : reader_names(/*rotations_only=*/true)) {
    if (name.empty() && parts.contains(known)) name = known;
  }
  const auto own = parts.find(name);
  if (own == parts.end() || own->second == kCodedName) {
    if (name.empty()) name = "sglang";
    std::string why;  // of all parts, what the server cannot read
    for (const auto& [part_name, part] : set.rotations) {
      const std::string beyond = beyond_reader(reader_from_name(name, "--for"), part);
      if (!beyond.empty()) why += "; of " + part_name + ", " + beyond;
    }
    const bool vllm_serves = parts.contains("vllm") && recorded_verdict(set.manifest, "vllm") != Verdict::kRejected;
    const char* const vllm = vllm_serves ? "; vLLM serves this set: OSCAR_KV_SET=SET vllm serve MODEL" : "";
    throw DataError("the set has no part for " + name + why, folder.string(),
                    "fit one: oscar fit --for " + name + vllm);
  }
  const Reader& reader = reader_from_name(name, "--for");
  const RotationPart& part = set.rotations.at(own->second);
  const ServedFiles files = served_files(set, own->second);
  if (!is_llama_cpp(reader)) require_served(part, files, name, folder / folder_of_part(own->second));
  ServerSettings settings{name,
                          own->second,
                          recorded_verdict(set.manifest, name),
                          {},
                          server_arguments(part, reader),
                          server_notes(part, reader, files)};
  const fs::path here = fs::absolute(folder / folder_of_part(own->second));
  for (const ServerVariable& each : server_variables(part, reader, files)) {
    const fs::path path = each.value == "." ? here : here / each.value;
    settings.environment.emplace_back(each.name, each.is_file ? path.string() : each.value);
  }
  return settings;
}

std::map<std::string, Json> clip_tables(const RotationPart& set) {
  if (!set.has_clip_ratios) return {};
  return {{"k_clip_per_layer.json", ratios_per_layer(set, &LayerRotation::key, set.key_clip_scalar)},
          {"v_clip_per_layer.json", ratios_per_layer(set, &LayerRotation::value, set.value_clip_scalar)},
          {"k_clip_per_head.json", ratios_per_head(set, &LayerRotation::key)},
          {"v_clip_per_head.json", ratios_per_head(set, &LayerRotation::value)}};
}

}  // namespace oscar
