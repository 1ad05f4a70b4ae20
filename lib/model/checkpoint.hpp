// SPDX-License-Identifier: MIT
// The weights of a Hugging Face checkpoint folder: model.safetensors, or the shards that model.safetensors.index.json
// lists. Files are mapped, so that opening costs headers only and weights are paged in when a layer is loaded. Names
// are those of a plain language model ("model.layers.0…"); where it is part of a larger one, its prefix is found.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "model/decoder.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

class Checkpoint : public WeightStore {
 public:
  /// Throws DataError: no weights, an index that is malformed or names files outside the folder, a bad shard.
  explicit Checkpoint(const std::filesystem::path& model);

  [[nodiscard]] const TensorRef& at(const std::string& name) const override;
  [[nodiscard]] bool contains(const std::string& name) const override { return weights_.contains(stored_name(name)); }

  void read(std::span<const std::byte> bytes, std::byte* to) const override;
  /// By read(), so far.
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

 private:
  void open_shards(const std::filesystem::path& model, const std::filesystem::path& index);
  void find_prefix();
  [[nodiscard]] std::string stored_name(const std::string& name) const;

  std::string where_;
  std::string prefix_ = "model.";                          // in place of "model."
  std::string head_prefix_;                                // before "lm_head."
  std::map<std::string, SafetensorsFile> shards_;          // by file name
  std::map<std::string, const SafetensorsFile*> weights_;  // by weight name
  mutable std::atomic<std::uint64_t> bytes_read_ = 0;
};

}  // namespace oscar
