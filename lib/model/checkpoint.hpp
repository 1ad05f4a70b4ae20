// SPDX-License-Identifier: MIT
// The weights of a Hugging Face checkpoint folder: model.safetensors, or the shards that model.safetensors.index.json
// lists. Files are mapped, so that opening costs headers only and weights are paged in when a layer is loaded.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/decoder.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

class Checkpoint : public WeightStore {
 public:
  /// Throws DataError: no weights, an index that is malformed or names files outside the folder, a bad shard.
  explicit Checkpoint(const std::filesystem::path& model);

  [[nodiscard]] const TensorRef& at(const std::string& name) const override;

 private:
  void open_shards(const std::filesystem::path& model, const std::filesystem::path& index);

  std::string where_;
  std::map<std::string, SafetensorsFile> shards_;          // by file name
  std::map<std::string, const SafetensorsFile*> weights_;  // by weight name
};

}  // namespace oscar
