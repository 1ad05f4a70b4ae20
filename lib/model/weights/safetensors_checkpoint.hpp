// SPDX-License-Identifier: MIT
// The weights of a Hugging Face checkpoint folder: model.safetensors, or the shards that model.safetensors.index.json
// lists. Where the language model is part of a larger one, the prefix of its names is found.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/weights/checkpoint.hpp"
#include "model/weights/kept_bytes.hpp"
#include "model/weights/remote_rows.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

class SafetensorsCheckpoint : public Checkpoint {
 public:
  /// Throws DataError: no weights, an index that is malformed or names files outside the folder, a bad shard.
  explicit SafetensorsCheckpoint(const std::filesystem::path& model);

  [[nodiscard]] const TensorRef& at(const std::string& name) const override;
  [[nodiscard]] bool contains(const std::string& name) const override { return weights_.contains(stored_name(name)); }

  void read(std::span<const std::byte> bytes, std::byte* to) const override;
  void read_rows(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin, std::size_t count,
                 std::byte* to) const override;
  [[nodiscard]] int readers() const override;
  void keep_reads() const override;
  void stop_reads(bool stop) const override { stop_ = stop; }
  [[nodiscard]] Tensor load(const std::string& name) const override;
  [[nodiscard]] std::map<std::string, const PlacedFile*> files() const override;
  [[nodiscard]] std::uint64_t bytes_read() const override { return bytes_read_; }

 private:
  void open_shards(const std::filesystem::path& model, const Json& index, const std::string& where);
  void read_at_server(std::span<const RemoteRows::Part> parts) const;
  void find_prefix();
  [[nodiscard]] std::string stored_name(const std::string& name) const;

  std::string where_;
  bool remote_ = false;
  std::string prefix_ = "model.";                          // in place of "model."
  std::string head_prefix_;                                // before "lm_head."
  std::map<std::string, SafetensorsFile> shards_;          // by file name
  std::map<std::string, const SafetensorsFile*> weights_;  // by weight name
  mutable std::atomic<std::uint64_t> bytes_read_ = 0;
  mutable std::mutex remote_mutex_;
  mutable std::map<const std::byte*, RemoteRows> remote_rows_;  // by where a matrix begins
  mutable std::atomic<bool> stop_ = false;
  mutable KeptBytes kept_;
};

}  // namespace oscar
