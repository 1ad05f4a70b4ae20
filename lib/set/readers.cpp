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
  set.readers = reader_names();
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
  static const std::vector<Reader> kReaders{{.name = "vllm", .coded = true},
                                            {.name = "transformers", .coded = true},
                                            {.name = "sglang", .lloyd_max = true, .newer = true},
                                            {.name = "sglang-v1", .lloyd_max = true},
                                            {.name = "llamacpp"}};
  return kReaders;
}

std::vector<std::string> reader_names(bool rotations_only) {
  std::vector<std::string> names;
  for (const Reader& reader : readers()) {
    if (!rotations_only || !reader.coded) names.push_back(reader.name);
  }
  return names;
}

const Reader& reader_from_name(const std::string& name, const std::string& option) {
  const auto found = std::ranges::find(readers(), name, &Reader::name);
  if (found != readers().end()) return *found;
  throw unknown_choice(name, option, reader_names(), readers_of_server(name));
}

std::string beyond_reader(const Reader& reader, const RotationPart& rotations) {
  if (reader.coded) return "rotations";
  if (rotations.key_codec.grid == Grid::kLloydMax) {
    const int group = rotations.key_codec.group_size;
    const auto cut = [&](const LayerRotation& layer) { return group > 0 && group != layer.key.rotation.dim; };
    const bool clipped =
        !rotations.has_clip_ratios || (rotations.key_clip_scalar > 0 && rotations.value_clip_scalar > 0);
    const bool whole = clipped && std::ranges::none_of(rotations.layers, cut);
    if (!reader.lloyd_max) return "codec lloyd-max";
    if (!whole) return "codec lloyd-max for other rows than whole clipped heads";
  }
  for (const LayerRotation& layer : rotations.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      const auto has = [&](const char* what) { return "layer " + std::to_string(layer.layer_id) + " has " + what; };
      const bool clips = reader.newer && side == &layer.key;
      if (side->read_rotation.count > 0 && !reader.newer) return has("a read side of its own");
      if (!side->mean.empty() && !reader.newer) return has("a mean key");
      if (side->rotation.count != 1 && !reader.newer) return has("one rotation per head");
      if (!side->head_clip_ratios.empty() && !clips) return has("one clip ratio per head");
    }
  }
  return {};
}

std::string part_of_reader(const Set& set, const Reader& reader) {
  if (reader.coded) return set.coded ? kCodedName : "";
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
