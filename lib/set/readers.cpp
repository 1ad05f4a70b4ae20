// SPDX-License-Identifier: MIT
#include <algorithm>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "set/set.hpp"

namespace oscar {
namespace {

/// Which readers are meant by the name of a server or a library, in the words of an error; empty if nobody knows.
std::string readers_of_server(std::string server) {
  std::erase_if(server, [](char c) { return c == '.' || c == '-' || c == '_'; });
  server = lower_case(std::move(server));
  if (server == "hf" || server == "huggingface") return "models of Hugging Face run by transformers";
  if (server.starts_with("sglang")) return "newer trees of OSCAR's SGLang are sglang, the first ones sglang-v1";
  if (server.starts_with("llama") || server == "gguf" || server == "ollama") return "OSCAR's llama.cpp is llamacpp";
  return "";
}

/// What a set has of its only part.
template <class Part>
Set common_of(const Part& part) {
  Set set;
  set.model = part.model, set.calibration = part.calibration, set.windows = part.windows;
  if (part.recipe.contains("name")) set.recipe = {{"name", part.recipe["name"]}};
  for (const Reader& reader : readers()) set.readers.push_back(reader.name);
  return set;
}

}  // namespace

Set set_of(RotationPart part, const std::string& name) {
  Set set = common_of(part);
  set.rotations[name] = std::move(part);
  return set;
}

Set set_of(CodedPart part) {
  Set set = common_of(part);
  set.coded = std::move(part);
  return set;
}

std::vector<std::string> part_names(const Set& set) {
  std::vector<std::string> names;
  if (set.coded) names.emplace_back(kCodedName);
  for (const auto& [name, part] : set.rotations) names.push_back(name);
  return names;
}

const std::vector<Reader>& readers() {
  static const std::vector<Reader> kReaders = [] {
    const Reader ours{.coded = true,
                      .linear = true,
                      .per_head = true,
                      .mean = true,
                      .key_clips = true,
                      .value_clips = true,
                      .lloyd_max = true,
                      .lloyd_max_of_groups = true};
    std::vector<Reader> all{ours, ours, ours, {.lloyd_max = true}, {}};
    all[0].name = "vllm", all[1].name = "transformers", all[2].name = "sglang", all[3].name = "sglang-v1";
    all[4].name = "llamacpp", all[1].before_rope = true;
    all[2].coded = all[2].value_clips = all[2].lloyd_max_of_groups = false;
    return all;
  }();
  return kReaders;
}

const Reader& reader_from_name(const std::string& name, const std::string& option) {
  std::vector<std::string> names;
  for (const Reader& reader : readers()) {
    if (reader.name == name) return reader;
    names.push_back(reader.name);
  }
  throw unknown_choice(name, option, names, readers_of_server(name));
}

std::string beyond_reader(const Reader& reader, const RotationPart& rotations) {
  if (rotations.key_codec.grid == Grid::kLloydMax) {
    const int group = rotations.key_codec.group_size;
    const auto cut = [&](const LayerRotation& layer) { return group > 0 && group != layer.key.rotation.dim; };
    const bool whole =
        rotations.key_clip_scalar > 0 && rotations.value_clip_scalar > 0 && std::ranges::none_of(rotations.layers, cut);
    if (!reader.lloyd_max) return "codec lloyd-max";
    if (!reader.lloyd_max_of_groups && !whole) return "codec lloyd-max for other rows than whole clipped heads";
  }
  for (const LayerRotation& layer : rotations.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      const auto has = [&](const char* what) { return "layer " + std::to_string(layer.layer_id) + " has " + what; };
      const bool clips = side == &layer.key ? reader.key_clips : reader.value_clips;
      if (side->read_rotation.count > 0 && !reader.linear) return has("a read side of its own");
      if (!side->mean.empty() && !reader.mean) return has("a mean key");
      if (side->rotation.count != 1 && !reader.per_head) return has("one rotation per head");
      if (!side->head_clip_ratios.empty() && !clips) return has("one clip ratio per head");
    }
  }
  return {};
}

std::string part_of_reader(const Set& set, const Reader& reader) {
  if (set.coded && reader.coded && (reader.before_rope || !stores_before_rope(*set.coded))) return kCodedName;
  for (const char* const name : {kWithMeansName, kRotationsName}) {
    const auto part = set.rotations.find(name);
    if (part != set.rotations.end() && beyond_reader(reader, part->second).empty()) return name;
  }
  return {};
}

std::map<std::string, std::string> parts_of_readers(const Set& set) {
  std::map<std::string, std::string> parts;
  for (const std::string& name : set.readers) {
    std::string part = part_of_reader(set, reader_from_name(name, "readers"));
    if (!part.empty()) parts[name] = std::move(part);
  }
  return parts;
}

std::vector<std::string> readers_of_part(const Set& set, const std::string& part) {
  std::vector<std::string> names;
  for (const auto& [reader, own] : parts_of_readers(set)) {
    if (own == part) names.push_back(reader);
  }
  return names;
}

}  // namespace oscar
