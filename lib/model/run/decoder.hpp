// SPDX-License-Identifier: MIT
// The mathematics of one decoder layer for one sequence, by libtorch: it executes the blocks of a ModelConfig
// (config/config.hpp) on the CPU or on a GPU, in fp32 or in bf16 (norms, RoPE, softmax and routing are fp32 in both).
// Implemented in a plug-in that is opened on the first call, so that commands which run no model never load libtorch;
// its CUDA part is opened where a GPU is asked for. runner.hpp owns the order of layers and sequences and the
// parallelism. All methods may be called concurrently, for different sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/types.hpp"
#include "model/config/config.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {

/// Where and in what to compute.
struct DecoderOptions {
  std::string device = "cpu";   // cpu, cuda or cuda:N
  std::string dtype = "auto";   // float32, bfloat16; auto: float32 on the CPU, bfloat16 on a GPU
  bool hidden_on_host = false;  // hidden states live on the host between layers, whatever room a GPU has
  /// Gets what the user should know: less memory than wanted.
  std::function<void(const std::string&)> notice = [](const std::string&) {};
};

/// Weights in memory, ready to compute with: those of a layer that every token needs, or of one expert.
class LoadedWeights {
 public:
  virtual ~LoadedWeights() = default;
};

/// What belongs to one sequence, where the decoder computes: its hidden states with the keys and values that later
/// layers read, the q, k and v of a layer, its share of experts.
class Rows {
 public:
  virtual ~Rows() = default;
};

/// Host memory for rows of one sequence: q (T, Hq, d), k (T, Hkv, d), v (T, Hkv, d_v).
struct QkvBuffers {
  DType dtype = DType::kF32;  // float32, bfloat16, float16
  std::byte *q = nullptr, *k = nullptr, *v = nullptr;
};

/// Host memory for gradients by the rows of one sequence's cache: by k (T, Hkv, d), and by v (T, Hkv, d_v).
struct HistoryBuffers {
  std::span<float> key, value;
};

/// What a model predicts at one position of a text that has a next token, with a quantised cache beside exact
/// attention, as llama.cpp's perplexity tool defines it (--kl-divergence). All logarithms are natural, all sums in
/// fp64.
struct PositionFigures {
  double nll = 0;         // -log p^(next), with the quantised cache
  double nll_change = 0;  // log p(next) - log p^(next), p with exact attention
  double kld = 0;         // sum over tokens v with log p(v) > -16 of p(v) (log p(v) - log p^(v))
  double dp = 0;          // p^(next) - p(next)
  bool same_top = false;  // whether both find the same token the most likely one
  bool right = false;     // whether the quantised cache finds the next token the most likely one
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  /// All experts of a layer, in order; none of a layer without.
  using Experts = std::span<const std::unique_ptr<LoadedWeights>>;

  /// "cpu, float32"
  [[nodiscard]] virtual std::string description() const = 0;
  /// Returns how many sequences to work on at a time; 0 = one per thread.
  [[nodiscard]] virtual int concurrent_sequences() const = 0;
  /// Returns how many sequences to take gradients of at a time; 0 = one per thread. On a GPU with enough memory one
  /// sequence waits for its results while others hand over work.
  [[nodiscard]] virtual int concurrent_gradients() const = 0;
  /// Returns how many tokens experts should see together, so that a GPU has enough to do; 1: each sequence alone.
  [[nodiscard]] virtual std::int64_t tokens_at_once() const = 0;
  [[nodiscard]] virtual bool is_gpu() const = 0;
  /// Returns host memory that copies reach at full speed.
  [[nodiscard]] virtual std::shared_ptr<std::byte> host_memory(std::size_t bytes) const = 0;
  /// Makes room for the hidden states of this many tokens at a time; on the host if need be. Called before embed().
  virtual void make_room(std::int64_t num_tokens) = 0;
  /// Waits for what was started. Weights may go after that.
  virtual void finish() const = 0;

  /// Returns hidden states: token embeddings. first_position: of the first token.
  [[nodiscard]] virtual std::unique_ptr<Rows> embed(std::span<const std::int32_t> tokens,
                                                    std::int64_t first_position) const = 0;
  /// Copies all that goes on to the next layer to the host, in the type that this decoder computes in: (T,
  /// hidden_size), and behind that keys and values which several layers read.
  [[nodiscard]] virtual Tensor copy_hidden(const Rows& hidden) const = 0;
  /// Returns hidden states from a copy that copy_hidden() made of the same tokens. Throws DataError for one of another
  /// type or shape.
  [[nodiscard]] virtual std::unique_ptr<Rows> hidden_from(const TensorRef& copy, std::span<const std::int32_t> tokens,
                                                          std::int64_t first_position) const = 0;

  /// Loads a layer, or returns the one that somebody still holds. A GPU with much free memory keeps layers, and the
  /// head, for later passes.
  [[nodiscard]] virtual std::shared_ptr<const LoadedWeights> load_layer(int layer) const = 0;
  [[nodiscard]] virtual std::vector<std::unique_ptr<LoadedWeights>> load_experts(
      int layer, std::span<const int> experts) const = 0;
  /// Returns how many experts to load together, so that reading is fast and memory small.
  [[nodiscard]] virtual int experts_at_once(int layer) const = 0;

  /// Returns post-RoPE q, k and v of a layer that attends. Scores are q . k / sqrt(d): where a model scales otherwise,
  /// q has the rest. Keys and values that several layers read are kept in, or come from, `hidden`.
  [[nodiscard]] virtual std::unique_ptr<Rows> project(const LoadedWeights& layer, Rows& hidden) const = 0;
  /// Starts copies of q, k and v.
  virtual void copy_qkv(Rows& qkv, const QkvBuffers& out) const = 0;
  /// Waits for the copies. Returns the first of q, k, v that has a value which is not finite in the type of the copy,
  /// or "".
  [[nodiscard]] virtual std::string finish_copy(Rows& qkv) const = 0;

  /// Adds to `hidden` what the layer makes of exact causal attention.
  virtual void add_exact_attention(const LoadedWeights& layer, const Rows& qkv, Rows& hidden) const = 0;
  /// Adds to `hidden` what the layer makes of attention outputs (T, Hq, d_v).
  virtual void add_attention(const LoadedWeights& layer, std::span<const float> attention, Rows& hidden) const = 0;
  /// Adds to `hidden` what a layer without a cache makes of it.
  virtual void add_recurrent(const LoadedWeights& layer, Rows& hidden) const = 0;

  /// Adds mlp(hidden) to `hidden`, in a layer without experts.
  virtual void add_mlp(const LoadedWeights& layer, Rows& hidden) const = 0;
  /// Chooses the experts of a layer for sequences that are taken together, and starts their sum with what shared
  /// experts give.
  [[nodiscard]] virtual std::unique_ptr<Rows> route(const LoadedWeights& layer,
                                                    std::span<const Rows* const> hidden) const = 0;
  /// Returns the experts that tokens were routed to, ascending.
  [[nodiscard]] virtual std::vector<int> chosen_experts(const Rows& routed) const = 0;
  /// Adds to the sum what an expert gives to the tokens that were routed to it.
  virtual void add_expert(const LoadedWeights& layer, int expert, const LoadedWeights& weights, Rows& routed) const = 0;
  /// Adds the sum to `hidden`, the states of the sequences that route() saw.
  virtual void add_experts_sum(const LoadedWeights& layer, const Rows& routed, std::span<Rows* const> hidden) const = 0;

  /// Loads the final norm and the output head, or returns those that somebody still holds.
  [[nodiscard]] virtual std::shared_ptr<const LoadedWeights> load_head() const = 0;
  /// Writes the logits (T, vocab_size) of a sequence that has passed all layers.
  virtual void logits(const LoadedWeights& head, const Rows& hidden, std::span<float> logits) const = 0;

  /// Does what FinalStates::compare() says.
  virtual void compare(const LoadedWeights& head, const Rows& exact, std::span<const Rows* const> others,
                       std::int64_t first, std::span<const std::int32_t> next,
                       std::span<const std::span<PositionFigures>> out) const = 0;

  /// Returns hidden states behind a whole layer of those before it, which stay.
  [[nodiscard]] virtual std::unique_ptr<Rows> behind(const LoadedWeights& layer, Experts experts,
                                                     const Rows& before) const = 0;
  /// Returns what pull_back() needs of hidden states, rounded to bfloat16: it is kept of all layers at a time.
  [[nodiscard]] virtual std::unique_ptr<Rows> kept_for_gradients(const Rows& hidden) const = 0;
  /// Returns gradients, by the hidden states of a sequence that has passed all layers, of the sum of log-likelihoods of
  /// tokens that are drawn from what the model predicts at each position: one for each of `draws`, which have a number
  /// in [0, 1) for each token.
  [[nodiscard]] virtual std::vector<std::unique_ptr<Rows>> likelihood_gradients(
      const LoadedWeights& head, const Rows& hidden, std::span<const std::vector<float>> draws) const = 0;
  /// Turns gradients by hidden states behind a layer into those by the states before it, of which `before` is kept. If
  /// the layer attends, writes the gradients by the keys and values that it reads, as far as queries find them in the
  /// history (Windows), to one of `out` for each.
  virtual void pull_back(const LoadedWeights& layer, Experts experts, const Rows& before,
                         std::span<const std::unique_ptr<Rows>> gradients, Windows windows,
                         std::span<const HistoryBuffers> out) const = 0;
};

/// Opens the plug-in. Throws BackendUnavailable if it, libtorch or the device is not there, UsageError for a device or
/// type that does not exist.
[[nodiscard]] std::unique_ptr<Decoder> make_decoder(const ModelConfig& config, const WeightStore& weights,
                                                    const DecoderOptions& options);

}  // namespace oscar
