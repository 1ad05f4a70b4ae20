// SPDX-License-Identifier: MIT
// The weights of a Hugging Face checkpoint folder, on disk or at a server (base/places.hpp): model.safetensors, or the
// shards that model.safetensors.index.json lists. Opening costs headers only; weights are read when a layer is loaded.
// Names are those of a plain language model ("model.layers.0…"); where it is part of a larger one, its prefix is found.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "model/decoder.hpp"
#include "model/kept_bytes.hpp"
#include "model/remote_rows.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

class Checkpoint : public WeightStore {
 public:
  /// Throws DataError: no weights, an index that is malformed or names files outside the folder, a bad shard.
  explicit Checkpoint(const std::filesystem::path& model);

  [[nodiscard]] const TensorRef& at(const std::string& name) const override;
  [[nodiscard]] bool contains(const std::string& name) const override { return weights_.contains(stored_name(name)); }

  void read(std::span<const std::byte> bytes, std::byte* to) const override;
  void read_rows(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin, std::size_t count,
                 std::byte* to) const override;
  [[nodiscard]] int readers() const override;
  /// Of a model at a server: what is read from now on is kept for the next time, up to 2 GiB.
  void keep_reads() const;
  /// true: what is being read, and all that is asked for later, ends with Interrupted, for nobody waits for it (of
  /// files on disk it is done before that); false: no longer. From any thread.
  void stop_reads(bool stop) const { stop_ = stop; }
  /// A whole weight in memory.
  [[nodiscard]] Tensor load(const std::string& name) const;
  /// By file name.
  [[nodiscard]] const std::map<std::string, SafetensorsFile>& files() const noexcept { return shards_; }
  /// From files and servers, so far; rows of mapped files do not count.
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

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
