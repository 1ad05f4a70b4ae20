// SPDX-License-Identifier: MIT
#include "model/checkpoint.hpp"

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/json.hpp"

namespace oscar {
namespace {

/// By what lies there instead.
const char* remedy_without_weights(const fs::path& model) {
  bool shards = false, pickles = false;
  for (const auto& entry : fs::directory_iterator(model)) {
    shards = shards || entry.path().extension() == ".safetensors";
    pickles = pickles || entry.path().extension() == ".bin" || entry.path().extension() == ".pth";
  }
  if (shards) return "fetch model.safetensors.index.json too, which tells what lies in which file";
  if (pickles) return "save the checkpoint in safetensors format, with save_pretrained of transformers";
  return "name a checkpoint in safetensors format";
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& model) : where_(model.string()) {
  const fs::path index = model / "model.safetensors.index.json";
  const fs::path single = model / "model.safetensors";
  if (fs::exists(index)) {
    open_shards(model, index);
  } else if (fs::exists(single)) {
    const SafetensorsFile& file = shards_.try_emplace(single.filename().string(), single).first->second;
    for (const auto& [name, tensor] : file.tensors()) weights_[name] = &file;
  } else {
    throw DataError("the folder has no weights: neither model.safetensors nor model.safetensors.index.json", where_,
                    remedy_without_weights(model));
  }
  find_prefix();
}

void Checkpoint::open_shards(const fs::path& model, const fs::path& index) {
  const Json json = read_json(index);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    throw DataError("the index has no object \"weight_map\"", index.string(), "fetch the checkpoint again");
  }
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string() || !is_safe_relative_path(shard.get<std::string>())) {
      throw DataError("the index names the file " + shard.dump() + " for " + name, index.string(),
                      "fetch the checkpoint again");
    }
    const std::string file = shard.get<std::string>();
    if (!fs::exists(model / file)) {
      throw DataError("the file is missing, which the index names for " + name, (model / file).string(),
                      "fetch it, or the whole checkpoint again");
    }
    weights_[name] = &shards_.try_emplace(file, model / file).first->second;
  }
}

void Checkpoint::find_prefix() {
  for (const std::string outer : {"", "language_model."}) {
    for (const std::string inner : {"model.", "model.language_model."}) {
      if (!weights_.contains(outer + inner + "embed_tokens.weight")) continue;
      prefix_ = outer + inner;
      head_prefix_ = outer;
      return;
    }
  }
}

std::string Checkpoint::stored_name(const std::string& name) const {
  constexpr std::string_view kPlain = "model.";
  return name.starts_with(kPlain) ? prefix_ + name.substr(kPlain.size()) : head_prefix_ + name;
}

const TensorRef& Checkpoint::at(const std::string& name) const {
  const std::string stored = stored_name(name);
  const auto found = weights_.find(stored);
  if (found == weights_.end()) {
    throw DataError("the checkpoint has no weight " + stored, where_,
                    "check that config.json and the weights belong together, or fetch the checkpoint again");
  }
  return found->second->at(stored);
}

void Checkpoint::read(std::span<const std::byte> bytes, std::byte* to) const {
  bytes_read_ += bytes.size();
  for (const auto& [name, file] : shards_) {
    if (const std::optional<FilePlace> place = file.find(bytes)) {
      return read_at(place->descriptor, place->offset, {to, bytes.size()});
    }
  }
  OSCAR_CHECK(bytes.empty());
}

}  // namespace oscar
