// SPDX-License-Identifier: MIT
// The weights of a Hugging Face checkpoint folder: model.safetensors, or the shards that model.safetensors.index.json
// lists. Where the language model is part of a larger one, the prefix of its names is found.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "base/places.hpp"
#include "base/status.hpp"
#include "base/threads.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {
namespace {

/// By what lies there instead.
const char* remedy_without_weights(const fs::path& model) {
  bool shards = false, pickles = false, ggufs = false;
  for (const auto& entry : fs::directory_iterator(model)) {
    shards = shards || entry.path().extension() == ".safetensors";
    ggufs = ggufs || entry.path().extension() == ".gguf";
    pickles = pickles || entry.path().extension() == ".bin" || entry.path().extension() == ".pth";
  }
  if (ggufs) return "name the .gguf file itself";
  if (shards) return "fetch model.safetensors.index.json too, which tells what lies in which file";
  if (pickles) return "save the checkpoint in safetensors format, with save_pretrained of transformers";
  return "name a checkpoint in safetensors format, or a .gguf file";
}

constexpr int kOpenAtOnce = 16;  // files at a server: each takes a round trip or two

class SafetensorsCheckpoint : public Checkpoint {
 public:
  /// Throws DataError: no weights, an index that is malformed or names files outside the folder, a bad shard.
  explicit SafetensorsCheckpoint(const fs::path& model) : Checkpoint(model), where_(model.string()) {
    const fs::path index = model / "model.safetensors.index.json";
    const fs::path single = model / "model.safetensors";
    const std::optional<std::string> text = optional_text(index);
    // Servers differ where both are there; transformers takes the single file.
    const bool both = text && (remote_ ? place_exists(single) : fs::exists(single));
    if (both) notices_.push_back("model.safetensors is read, not the shards of the index that lies beside it");
    if (text && !both) {
      open_shards(model, parse_json(*text, index.string()), index.string());
    } else if (remote_ || fs::exists(single)) {
      shards_.try_emplace(single.filename().string(), single);
      place_weights({}, where_);
    } else {
      throw DataError("the folder has no weights: neither model.safetensors nor model.safetensors.index.json", where_,
                      remedy_without_weights(model));
    }
    find_prefix();
  }

  [[nodiscard]] const TensorRef& at(const std::string& name) const override {
    const std::string stored = stored_name(name);
    const auto found = weights_.find(stored);
    if (found == weights_.end()) {
      throw DataError("the checkpoint has no weight " + stored, where_,
                      "check that config.json and the weights belong together, or fetch the checkpoint again");
    }
    return found->second->at(stored);
  }

  [[nodiscard]] bool contains(const std::string& name) const override { return weights_.contains(stored_name(name)); }
  [[nodiscard]] std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, file] : weights_) {
      if (name.starts_with(prefix_ + "layers.")) names.push_back("model." + name.substr(prefix_.size()));
    }
    return names;
  }

  void read(std::span<const std::byte> bytes, std::byte* to) const override {
    const StopScope scope(stop_);
    if (bytes.empty() || kept_.copy(bytes, to)) return;
    bytes_read_ += bytes.size();
    const auto has_bytes = [&](const auto& shard) { return shard.second.find(bytes).has_value(); };
    const auto shard = std::find_if(shards_.begin(), shards_.end(), has_bytes);
    OSCAR_CHECK(shard != shards_.end());
    shard->second.file().read(*shard->second.find(bytes), {to, bytes.size()});
    kept_.add(bytes, to);
  }

  [[nodiscard]] std::map<std::string, const PlacedFile*> files() const override {
    std::map<std::string, const PlacedFile*> files;
    for (const auto& [name, shard] : shards_) files[name] = &shard.file();
    return files;
  }

 protected:
  void read_here(std::span<const std::byte> bytes, std::byte* to) const override {
    std::copy(bytes.begin(), bytes.end(), to);  // they are mapped
  }
  void read_at_server(std::span<const RemoteRows::Part> parts) const override {
    std::vector<FilePart> all;
    for (const auto& [from, to] : parts) {
      bytes_read_ += from.size();
      for (const auto& [name, file] : shards_) {
        if (const auto offset = file.find(from)) all.push_back({&file.file(), *offset, to});
      }
    }
    OSCAR_CHECK(all.size() == parts.size());
    remote_places().read(all);
  }

 private:
  void open_shards(const fs::path& model, const Json& index, const std::string& where) {
    const Json& map = member(index, "weight_map");
    if (!map.is_object()) {
      throw DataError("the index has no object \"weight_map\"", where, "fetch the checkpoint again");
    }
    std::map<std::string, std::string> files;  // by weight
    std::set<std::string> distinct;
    for (const auto& [name, shard] : map.items()) {
      if (!shard.is_string() || !is_safe_relative_path(shard.get<std::string>())) {
        throw DataError("the index names the file " + shard.dump() + " for " + name, where,
                        "fetch the checkpoint again");
      }
      const std::string file = shard.get<std::string>();
      if (!remote_ && !fs::exists(model / file)) {
        throw DataError("the file is missing, which the index names for " + name, (model / file).string(),
                        "fetch it, or the whole checkpoint again");
      }
      files[name] = file;
      distinct.insert(file);
    }
    const std::vector<std::string> names(distinct.begin(), distinct.end());
    std::vector<std::optional<SafetensorsFile>> opened(names.size());
    parallel_for(
        names.size(), [&](std::size_t i) { opened[i].emplace(model / names[i]); }, remote_ ? kOpenAtOnce : 1);
    for (std::size_t i = 0; i < names.size(); ++i) shards_.emplace(names[i], std::move(*opened[i]));
    place_weights(files, where);
  }

  /// Weights lie where they are found; where that is in several files, in the one that the index tells.
  void place_weights(const std::map<std::string, std::string>& told, const std::string& where) {
    for (const auto& [file, shard] : shards_) {
      for (const std::string& name : shard.names()) {
        const auto index = told.find(name);
        if (index == told.end() || index->second == file || !weights_.contains(name)) weights_[name] = &shard;
      }
    }
    for (const auto& [name, file] : told) {
      if (!weights_.contains(name)) {
        throw DataError(
            "the index names the file " + file + " for " + name + ", which neither that nor another file has", where,
            "fetch the checkpoint again");
      }
      if (weights_.at(name) == &shards_.at(file)) continue;
      notices_.push_back("the index names the wrong file for " + name + " (" + where + "); it was found in another");
    }
  }

  void find_prefix() {
    for (const std::string outer : {"", "language_model."}) {
      for (const std::string inner : {"model.", "model.language_model.", ""}) {
        if (!weights_.contains(outer + inner + "embed_tokens.weight")) continue;
        prefix_ = outer + inner;
        head_prefix_ = outer;
        return;
      }
    }
  }

  [[nodiscard]] std::string stored_name(const std::string& name) const {
    constexpr std::string_view kPlain = "model.";
    return name.starts_with(kPlain) ? prefix_ + name.substr(kPlain.size()) : head_prefix_ + name;
  }

  std::string where_;
  std::string prefix_ = "model.";                          // in place of "model."
  std::string head_prefix_;                                // before "lm_head."
  std::map<std::string, SafetensorsFile> shards_;          // by file name
  std::map<std::string, const SafetensorsFile*> weights_;  // by weight name
};

}  // namespace

std::unique_ptr<Checkpoint> open_safetensors(const fs::path& model) {
  return std::make_unique<SafetensorsCheckpoint>(model);
}

}  // namespace oscar
