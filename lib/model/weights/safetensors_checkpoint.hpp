// SPDX-License-Identifier: MIT
// The weights of a Hugging Face checkpoint folder: model.safetensors, or the shards that model.safetensors.index.json
// lists. Where the language model is part of a larger one, the prefix of its names is found.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {

class SafetensorsCheckpoint : public Checkpoint {
 public:
  /// Throws DataError: no weights, an index that is malformed or names files outside the folder, a bad shard.
  explicit SafetensorsCheckpoint(const std::filesystem::path& model);

  [[nodiscard]] const TensorRef& at(const std::string& name) const override;
  [[nodiscard]] bool contains(const std::string& name) const override { return weights_.contains(stored_name(name)); }
  [[nodiscard]] std::vector<std::string> names() const override;
  void read(std::span<const std::byte> bytes, std::byte* to) const override;
  [[nodiscard]] std::map<std::string, const PlacedFile*> files() const override;

 protected:
  void read_here(std::span<const std::byte> bytes, std::byte* to) const override {
    std::copy(bytes.begin(), bytes.end(), to);  // they are mapped
  }
  void read_at_server(std::span<const RemoteRows::Part> parts) const override;

 private:
  void open_shards(const std::filesystem::path& model, const Json& index, const std::string& where);
  void place_weights(const std::map<std::string, std::string>& told, const std::string& where);
  void find_prefix();
  [[nodiscard]] std::string stored_name(const std::string& name) const;

  std::string where_;
  std::string prefix_ = "model.";                          // in place of "model."
  std::string head_prefix_;                                // before "lm_head."
  std::map<std::string, SafetensorsFile> shards_;          // by file name
  std::map<std::string, const SafetensorsFile*> weights_;  // by weight name
};

}  // namespace oscar
