// SPDX-License-Identifier: MIT
// The weights of a model, on disk or at a server (base/places.hpp), by the names that a plain language model has in
// Hugging Face's checkpoints ("model.layers.0…"). A model is a folder of safetensors (safetensors_checkpoint.hpp) or a
// GGUF file (gguf_checkpoint.hpp). Opening costs headers only; weights are read when a layer is loaded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "base/places.hpp"
#include "model/weights/weight_store.hpp"

namespace oscar {

class Checkpoint : public WeightStore {
 public:
  /// Keeps what is read of a model at a server from now on for the next time, up to 2 GiB.
  virtual void keep_reads() const = 0;
  /// Ends reads, or lets them work again. With `true`, what is being read and all that is asked for later end with
  /// Interrupted, for nobody waits for it; files on disk are done before that. Any thread may call this.
  virtual void stop_reads(bool stop) const = 0;
  /// Reads a whole weight into memory.
  [[nodiscard]] virtual Tensor load(const std::string& name) const = 0;
  /// Returns the files of weights by file name.
  [[nodiscard]] virtual std::map<std::string, const PlacedFile*> files() const = 0;
  /// Returns how many bytes were read from files and servers so far. Rows of mapped files do not count.
  [[nodiscard]] virtual std::uint64_t bytes_read() const = 0;
};

/// Opens the weights of a model. Throws DataError: no weights, an index that is malformed or names files outside the
/// folder, a bad file.
[[nodiscard]] std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& model);

}  // namespace oscar
