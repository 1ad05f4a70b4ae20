// SPDX-License-Identifier: MIT
// Runs a checkpoint layer by layer over a set of sequences: all sequences pass one layer while the next is loaded, so
// that two layers are in memory at a time (of experts, two groups), besides the hidden states of all sequences. What
// attention computes can be replaced, which is how verify measures a quantised cache and how a live fit watches a
// model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "kernels/rotary.hpp"
#include "kernels/types.hpp"
#include "model/config/config.hpp"
#include "model/run/decoder.hpp"
#include "model/tokenizer/tokens.hpp"

namespace oscar {

/// Sees the q, k and v of one sequence in one layer that attends, to a cache of its own or to that of an earlier layer
/// (ModelConfig::cache_of). Scores are q . k / sqrt(d); where a
/// model scales otherwise, q has the rest. Either fills `out` (T, Hq, d_v) and returns true, or returns false
/// and exact attention is computed. Called concurrently for different sequences.
using AttentionHook = std::function<bool(int layer, std::size_t sequence, const QkvView& qkv, std::span<float> out)>;
/// Says where q, k and v of a sequence go, in the type that they are wanted in; called concurrently for different
/// sequences.
using CaptureHook = std::function<QkvBuffers(std::size_t sequence)>;
/// Logits (tokens, vocab_size) of one sequence; called concurrently for different sequences.
using LogitsHook = std::function<void(std::size_t sequence, std::span<const float> logits)>;

/// What sequences are behind a model's last layer, and the head that makes logits of it. It outlives its pass, but not
/// its runner.
class FinalStates {
 public:
  virtual ~FinalStates() = default;
  /// Writes the logits (tokens, vocab_size) of a sequence. May be called concurrently.
  virtual void logits(std::size_t sequence, std::span<float> out) const = 0;
  /// Compares what these states, and those of other runs of this model over the same sequences, predict behind tokens
  /// [first, first + n), where `next` follow: the figures of others[r] go to out[r], (n). May be called concurrently.
  virtual void compare(std::size_t sequence, std::int64_t first, std::span<const std::int32_t> next,
                       std::span<const FinalStates* const> others,
                       std::span<const std::span<PositionFigures>> out) const = 0;
  /// Says how many calls at a time are worth while; 0: one a thread.
  [[nodiscard]] virtual int concurrent_calls() const = 0;
};

/// All hooks are optional.
struct RunHooks {
  AttentionHook attention;
  /// Called when all sequences have passed `layer`.
  std::function<void(int layer)> layer_done;
  /// Sees logits. Without this or `final_states`, the last layer stops after attention was seen.
  LogitsHook logits;
  /// Takes the states behind the last layer.
  std::function<void(std::unique_ptr<FinalStates>)> final_states;
};

struct PassOptions {
  /// How many layers will be run, from the first on.
  int layers = 0;
  /// Loads at once what the first step needs, and on a GPU tries it out.
  bool prepare = false;
  /// Positions of the first token of each sequence; empty: 0. Where each token is, but not how far from others, changes
  /// keys.
  std::vector<std::int64_t> first_positions = {};
};

/// What is asked about the history of caches: keys and values that stand neither among the first `sink` tokens nor
/// among the last `recent` that a query sees.
struct HistoryQuestion {
  std::span<const TokenSequence> sequences;
  std::vector<std::int64_t> first_positions = {};  // as PassOptions
  Windows windows;
  /// How often tokens are drawn: each time is a sample of its own.
  int draws = 1;
};
/// Sees, of one sequence in one layer that attends, the gradients by keys (T, Hkv, d) and by values (T, Hkv, d_v) of
/// the cache that it reads. Called concurrently for different sequences, for layers from the last to the first, in each
/// draw after draw.
using HistoryHook =
    std::function<void(int layer, std::size_t sequence, std::span<const float> key, std::span<const float> value)>;

/// A run in the caller's hands: one step a layer. It refers to its runner, which must outlive it; one pass at a time.
class ModelPass {
 public:
  virtual ~ModelPass() = default;
  /// Returns the layer that the next step runs; at least as many as there are after the last.
  [[nodiscard]] virtual int layer() const = 0;
  /// Takes all sequences through one layer. observe_only: the pass ends once `attention` has seen all; nothing can
  /// follow.
  virtual void step(const AttentionHook& attention, bool observe_only) = 0;
  /// Takes all sequences through one layer with exact attention, and keeps q, k and v. Throws DataError for a value
  /// that is not finite in the type of its copy.
  virtual void capture(const CaptureHook& target, bool observe_only) = 0;
  /// Writes all that one layer hands to the next: of each sequence hidden states, tokens times
  /// hidden_size values in the type that the model computes in, and keys and values that several layers read. Throws
  /// IoError.
  virtual void save(const std::filesystem::path& path) const = 0;
  /// Goes on where the pass was that save() wrote. Called before the first step. Throws DataError for a damaged file,
  /// or one of other sequences or another type.
  virtual void restore(const std::filesystem::path& path) = 0;
  /// Waits until the first step can run at full speed: weights are loaded, and a GPU's kernels. Throws what loading
  /// throws.
  virtual void wait_until_ready() = 0;
  /// Hands over what is behind the last layer; nothing can follow. Loads the head.
  [[nodiscard]] virtual std::unique_ptr<FinalStates> final_states() = 0;
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  /// Returns how a layer that has a cache turns scores into shares: what attention that replaces its own must do.
  [[nodiscard]] virtual ScoreRule score_rule(int layer) const = 0;
  /// Says where the model computes and in what: "cpu, float32".
  [[nodiscard]] virtual std::string description() const = 0;
  /// Returns host memory for what is captured, which a GPU's copies reach at full speed.
  [[nodiscard]] virtual std::shared_ptr<std::byte> host_memory(std::size_t bytes) const = 0;
  /// Tells whether host_memory() takes long, but is quick to give the same memory again.
  [[nodiscard]] virtual bool keeps_host_memory() const = 0;
  /// Begins a pass. Throws DataError for a token id outside the vocabulary, an empty sequence, or one longer than the
  /// model's context. `sequences` and `status` must outlive the pass.
  [[nodiscard]] virtual std::unique_ptr<ModelPass> begin(std::span<const TokenSequence> sequences,
                                                         const PassOptions& options, Status& status) = 0;
  /// Shows the gradients of what the model predicts by the keys and values that it finds in the history. What is
  /// predicted is the sum of the log-likelihoods of tokens drawn from the model's own predictions, one at each
  /// position, always the same ones. The mean over draws of (gradient . e)^2 is then twice the KL divergence which
  /// small errors e cause (Fisher information). Keeps hidden states of all sequences at all layers. Throws as begin()
  /// does.
  virtual void history_gradients(const HistoryQuestion& question, const HistoryHook& hook, Status& status) = 0;
  /// Takes all sequences through all layers.
  void run(std::span<const TokenSequence> sequences, const RunHooks& hooks, Status& status);
};

/// Calls `hook` with the logits of each sequence, which has `sequences[i].size()` tokens.
void for_each_logits(const FinalStates& states, std::span<const TokenSequence> sequences, int vocab_size,
                     const LogitsHook& hook);

/// Returns how the keys of a layer turn by their positions; nothing if they do not.
[[nodiscard]] std::optional<Rotary> rotary_of(const MixerSpec& mixer);
/// Returns why keys of this layer cannot be stored as they were before RoPE; empty if they can, or have none.
[[nodiscard]] std::string why_not_before_rope(const MixerSpec& mixer);

/// Opens a Hugging Face checkpoint folder (config.json, *.safetensors with or without an index) or a GGUF file. Throws
/// DataError, and what make_decoder() throws (decoder.hpp).
[[nodiscard]] std::unique_ptr<ModelRunner> open_model(const std::filesystem::path& model,
                                                      const DecoderOptions& options = {});

}  // namespace oscar
