// SPDX-License-Identifier: MIT
// Runs a checkpoint layer by layer over a set of sequences: all sequences pass one layer before the next is loaded.
// What attention computes can be replaced, which is how verify measures a quantised cache and how a live fit watches a
// model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "kernels/types.hpp"
#include "model/config.hpp"

namespace oscar {

using TokenSequence = std::vector<std::int32_t>;

/// All hooks are optional.
struct RunHooks {
  /// Sees the q, k and v of one sequence in one layer. Either fills `out` (T, Hq, d) and returns true, or returns false
  /// and exact attention is computed. Called concurrently for different sequences.
  std::function<bool(int layer, std::size_t sequence, const QkvView& qkv, std::span<float> out)> attention;
  /// All sequences have passed `layer`.
  std::function<void(int layer)> layer_done;
  /// Logits (T, vocab_size) of one sequence; called concurrently for different sequences. Without it they are not
  /// computed, and the last layer stops after attention was seen.
  std::function<void(std::size_t sequence, std::span<const float> logits)> logits;
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  /// Throws DataError for a token id outside the vocabulary or a sequence longer than the model's context.
  virtual void run(std::span<const TokenSequence> sequences, const RunHooks& hooks, Status& status) = 0;
};

/// Opens a Hugging Face checkpoint folder (config.json, *.safetensors with or without an index). Throws DataError.
[[nodiscard]] std::unique_ptr<ModelRunner> open_model(const std::filesystem::path& model);

}  // namespace oscar
