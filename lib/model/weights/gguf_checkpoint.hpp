// SPDX-License-Identifier: MIT
// The weights of a model in GGUF by the names, in the order of rows and in the scale of the checkpoint that it was made
// from. Quantised tensors are shown as float32 and become that as they are read (tensor/ggml_blocks.hpp), so that what
// the file takes on disk is all that stays there.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "model/gguf/gguf_model.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {

class GgufCheckpoint : public Checkpoint {
 public:
  /// Throws DataError: what GgufModel throws, a tensor of a type or a name that is not supported.
  explicit GgufCheckpoint(const std::filesystem::path& path);
  ~GgufCheckpoint() override;
  GgufCheckpoint(const GgufCheckpoint&) = delete;
  GgufCheckpoint& operator=(const GgufCheckpoint&) = delete;

  [[nodiscard]] const TensorRef& at(const std::string& name) const override;
  [[nodiscard]] bool contains(const std::string& name) const override { return weights_.contains(name); }
  [[nodiscard]] std::vector<std::string> names() const override;
  [[nodiscard]] bool tells_biases() const override { return true; }
  void read(std::span<const std::byte> bytes, std::byte* to) const override;
  [[nodiscard]] std::map<std::string, const PlacedFile*> files() const override;

 protected:
  void read_here(std::span<const std::byte> bytes, std::byte* to) const override;
  void read_at_server(std::span<const RemoteRows::Part> parts) const override;

 private:
  struct Weight {
    TensorRef shown;  // its bytes are names only
    const GgufFile* file = nullptr;
    const GgufTensor* tensor = nullptr;
    std::int64_t head_rows = 0;  // rows of a head, if each head's rows are turned; else 0
    bool plus_one = false;
  };
  /// Bytes of a weight, and those of the file that hold them.
  struct Part {
    const Weight* weight = nullptr;
    std::uint64_t begin = 0, end = 0;     // of the shown bytes
    std::uint64_t first = 0, values = 0;  // what is decoded for them
    std::span<const std::byte> stored;    // that, in the file
    std::byte* to = nullptr;
  };

  [[nodiscard]] Weight weight_of(const GgufModel::Place& place, const std::string& name,
                                 const GgufWeightName& known) const;
  void reserve_addresses();
  [[nodiscard]] Part part_of(std::span<const std::byte> bytes, std::byte* to) const;
  void read(std::span<const Part> parts) const;

  GgufModel model_;
  std::map<std::string, Weight> weights_;
  std::map<const std::byte*, const Weight*> by_address_;  // by where the shown bytes begin
  std::byte* addresses_ = nullptr;                        // reserved, not there
  std::uint64_t reserved_ = 0;
};

}  // namespace oscar
