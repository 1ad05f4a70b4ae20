// SPDX-License-Identifier: MIT
// The weights of a model, on disk or at a server (base/places.hpp), by the names that a plain language model has in
// Hugging Face's checkpoints ("model.layers.0.self_attn.q_proj.weight"). A model is a folder of safetensors
// (safetensors_checkpoint.cpp) or a GGUF file (gguf_checkpoint.cpp). Opening costs headers only; weights are read when
// a layer is loaded; those that lie at a server stay in memory for who needs them again.
//
// Which weights a checkpoint with given blocks has, under which names, in which shapes: the only place that knows.
// Linear weights are [out, in], as PyTorch stores them. Non-goal: what is computed with them (run/decoder.hpp).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/places.hpp"
#include "model/config/config.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

/// Rows of a matrix at a server. What one sequence of tokens needs, the next needs again for the most part: rows stay
/// in memory, and rows that lie near each other come in one request.
class RemoteRows {
 public:
  struct Part {
    std::span<const std::byte> from;  // of the matrix
    std::span<std::byte> to;
  };
  /// Reads parts of the matrix, at the same time.
  using Read = std::function<void(std::span<const Part> parts)>;

  /// Copies bytes [begin, begin + count) of rows of `matrix`, in the order given. Always the same matrix. Throws what
  /// `read` throws.
  void read(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin, std::size_t count,
            std::byte* to, const Read& read);

 private:
  void fetch(const TensorRef& matrix, std::vector<std::int32_t> rows, const Read& read);

  std::mutex mutex_;
  std::map<std::int32_t, std::vector<std::byte>> kept_;  // by row: as many as there are different tokens, at most
};

/// The weights of one model that stay in memory take at most this many bytes.
inline constexpr std::uint64_t kKeptBytes = std::uint64_t{2} << 30;

/// What was read from a server, in memory for the next pass over the model: whoever measures a model runs it many
/// times. Layers come in the same order each time, so that what came first stays, as much as there is room for. Any
/// thread may use it.
class KeptBytes {
 public:
  /// Keeps as many bytes as this from now on. Before the first call, none are kept.
  void allow(std::uint64_t bytes);
  /// Copies what was kept of exactly these bytes, which are a name and are not touched; false: nothing was.
  [[nodiscard]] bool copy(std::span<const std::byte> name, std::byte* to) const;
  /// Keeps name.size() bytes, if there is room.
  void add(std::span<const std::byte> name, const std::byte* bytes);

 private:
  using Key = std::pair<const std::byte*, std::size_t>;

  mutable std::mutex mutex_;
  std::map<Key, std::shared_ptr<const std::vector<std::byte>>> kept_;  // null: on its way in
  std::uint64_t allowed_ = 0, held_ = 0;
};

/// What a decoder, which may be a plug-in, reads weights from.
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  /// Finds a weight. The result is valid as long as the store. Throws DataError if the checkpoint has no such tensor.
  [[nodiscard]] virtual const TensorRef& at(const std::string& name) const = 0;
  [[nodiscard]] virtual bool contains(const std::string& name) const = 0;
  /// Copies bytes that at() showed by reading their file: no page faults, and nothing stays in this process's memory.
  /// The bytes may be at a server (safetensors.hpp): nothing else may touch them.
  virtual void read(std::span<const std::byte> bytes, std::byte* to) const = 0;
  /// Copies bytes [begin, begin + count) of the named rows of a matrix, one row after the other, as read() does.
  virtual void read_rows(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin,
                         std::size_t count, std::byte* to) const = 0;
  /// Returns how many read() calls at the same time are worth while; 0: as many as there are processors for.
  [[nodiscard]] virtual int readers() const = 0;
};

class Checkpoint : public WeightStore {
 public:
  explicit Checkpoint(const std::filesystem::path& model) : remote_(is_remote(model)) {}

  void read_rows(const TensorRef& matrix, std::span<const std::int32_t> rows, std::size_t begin, std::size_t count,
                 std::byte* to) const override;
  [[nodiscard]] int readers() const override { return remote_ ? files().begin()->second->readers() : 0; }
  /// Reads a whole weight into memory.
  [[nodiscard]] Tensor load(const std::string& name) const;
  /// Returns the files of weights by file name.
  [[nodiscard]] virtual std::map<std::string, const PlacedFile*> files() const = 0;

  /// Returns the names of all weights.
  [[nodiscard]] virtual std::vector<std::string> names() const = 0;

  /// Returns what users should know of how the files were read.
  [[nodiscard]] const std::vector<std::string>& notices() const { return notices_; }

  /// Keeps what is read of a model at a server from now on for the next time, up to 2 GiB.
  void keep_reads() const {
    if (remote_) kept_.allow(kKeptBytes);
  }
  /// Ends reads, or lets them work again. With `true`, what is being read and all that is asked for later end with
  /// Interrupted, for nobody waits for it; files on disk are done before that. Any thread may call this.
  void stop_reads(bool stop) const { stop_ = stop; }
  /// Returns how many bytes were read from files and servers so far. Rows of mapped files do not count.
  [[nodiscard]] std::uint64_t bytes_read() const { return bytes_read_; }

 protected:
  /// Copies bytes that at() showed, of files on disk, where rows are few.
  virtual void read_here(std::span<const std::byte> bytes, std::byte* to) const = 0;
  /// Reads several such parts from a server at the same time.
  virtual void read_at_server(std::span<const RemoteRows::Part> parts) const = 0;

  bool remote_;
  std::vector<std::string> notices_;
  mutable std::atomic<std::uint64_t> bytes_read_ = 0;
  mutable std::atomic<bool> stop_ = false;
  mutable KeptBytes kept_;

 private:
  mutable std::mutex remote_mutex_;
  mutable std::map<const std::byte*, RemoteRows> remote_rows_;  // by where a matrix begins
};

/// Opens the weights of a model. Throws DataError: no weights, an index that is malformed or names files outside the
/// folder, a bad file.
[[nodiscard]] std::unique_ptr<Checkpoint> open_checkpoint(const std::filesystem::path& model);
/// Returns the SHA-256 of what the norm before the first mixer multiplies with (of a family without it, the final
/// norm), in bfloat16: weights that converters leave as they are, and that full training moves, though not a merged
/// LoRA. Reads only these. "" if there are none.
[[nodiscard]] std::string weights_sha256(const ModelConfig& config, const Checkpoint& weights);
[[nodiscard]] std::unique_ptr<Checkpoint> open_safetensors(const std::filesystem::path& model);
[[nodiscard]] std::unique_ptr<Checkpoint> open_gguf(const std::filesystem::path& path);

struct WeightSpec {
  std::string name;  // in the checkpoint; of a layer's weights, the part after "model.layers.<layer>."
  std::vector<std::int64_t> shape;
  bool bytes = false;  // uint8 (MXFP4); else a float type, or float8 with a scale where the config has it
};

/// "model.layers.3.self_attn.q_proj.weight" from 3 and "self_attn.q_proj.weight".
[[nodiscard]] inline std::string layer_weight_name(int layer, const std::string& part) {
  return "model.layers." + std::to_string(layer) + "." + part;
}
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
/// Embeddings that tokens have for each layer, (layer_input_vocab, num_layers * input_dim), and what makes inputs of
/// hidden states.
inline constexpr const char* kLayerInputsName = "model.embed_tokens_per_layer.weight";
inline constexpr const char* kLayerInputProjectionName = "model.per_layer_model_projection.weight";
inline constexpr const char* kLayerInputNormName = "model.per_layer_projection_norm.weight";
inline constexpr const char* kFinalNormName = "model.norm.weight";
inline constexpr const char* kFinalNormBiasName = "model.norm.bias";
inline constexpr const char* kHeadName = "lm_head.weight";
/// The output head. Where there is one beside the embedding, it counts, even if config.json calls the two tied: so does
/// transformers.
[[nodiscard]] inline std::string head_weight_name(const ModelConfig& config) {
  return config.tie_word_embeddings && !config.own_head ? kEmbeddingName : kHeadName;
}

/// Throws DataError for a checkpoint without a head, which predicts nothing.
void require_head(const ModelConfig& config);

/// Settles what differs between checkpoints of one architecture, by the names that there are: how experts are stored,
/// and whether there is a head.
void settle_layouts(ModelConfig& config, const Checkpoint& weights);

/// Lists what a layer always needs: everything but routed experts.
[[nodiscard]] std::vector<WeightSpec> layer_weights(const ModelConfig& config, int layer);
/// Lists what one routed expert of a layer needs; of stacked experts, the whole stacks.
[[nodiscard]] std::vector<WeightSpec> expert_weights(const ModelConfig& config, int layer, int expert);
/// Lists every weight of a checkpoint with this config, by its full name; a head only if the checkpoint has one.
[[nodiscard]] std::vector<WeightSpec> expected_weights(const ModelConfig& config);

/// Throws DataError that names the first weight which is missing, has another shape, is of a type that it is not read
/// in, or lies in a layer that does not use it.
void check_weights(const ModelConfig& config, const Checkpoint& weights, const std::string& where);

}  // namespace oscar
