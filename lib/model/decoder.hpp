// SPDX-License-Identifier: MIT
// The mathematics of one decoder layer for one sequence, in fp32, by libtorch: it executes the blocks of a ModelConfig
// (block.hpp). Implemented in a plug-in that is opened on the first call, so that commands which run no model never
// load libtorch. It starts no threads: runner.hpp owns the order of layers and sequences and the parallelism. All
// methods may be called concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/types.hpp"
#include "model/config.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {

/// Where a decoder finds its weights by their checkpoint names, for example "model.layers.0.self_attn.q_proj.weight".
class WeightStore {
 public:
  virtual ~WeightStore() = default;
  /// Valid as long as the store. Throws DataError if the checkpoint has no such tensor.
  [[nodiscard]] virtual const TensorRef& at(const std::string& name) const = 0;
  [[nodiscard]] virtual bool contains(const std::string& name) const = 0;
  /// The bytes were converted and need no memory until someone reads them again.
  virtual void done_with(std::span<const std::byte> bytes) const noexcept = 0;
};

/// Weights in memory, ready to compute with: those of a layer that every token needs, or of one expert.
class LoadedWeights {
 public:
  virtual ~LoadedWeights() = default;
};

/// Where the tokens of one sequence go: token t to experts[t * top_k + i] with weights[t * top_k + i].
struct Routing {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  /// hidden (T, hidden_size) = token embeddings.
  virtual void embed(std::span<const std::int32_t> tokens, std::span<float> hidden) const = 0;
  [[nodiscard]] virtual std::unique_ptr<LoadedWeights> load_layer(int layer) const = 0;
  [[nodiscard]] virtual std::unique_ptr<LoadedWeights> load_expert(int layer, int expert) const = 0;

  /// Post-RoPE q (T, Hq, d), k (T, Hkv, d) and v (T, Hkv, d_v) of a layer with a cache; positions start at 0. Scores
  /// are q . k / sqrt(d): where a model scales otherwise, q has the rest.
  virtual void project(const LoadedWeights& layer, std::span<const float> hidden, std::span<float> q,
                       std::span<float> k, std::span<float> v) const = 0;
  /// Exact causal attention, for runs that replace nothing: out (T, Hq, d_v).
  virtual void attend(const LoadedWeights& layer, const QkvView& qkv, std::span<float> out) const = 0;
  /// hidden += what the layer makes of attention outputs (T, Hq, d_v).
  virtual void add_attention(const LoadedWeights& layer, std::span<const float> attention,
                             std::span<float> hidden) const = 0;
  /// hidden += what a layer without a cache makes of it.
  virtual void add_recurrent(const LoadedWeights& layer, std::span<float> hidden) const = 0;

  /// hidden += mlp(hidden), of a layer without experts.
  virtual void add_mlp(const LoadedWeights& layer, std::span<float> hidden) const = 0;
  /// Of a layer with experts: chooses them, and starts sum (T, hidden_size) with what shared experts give.
  [[nodiscard]] virtual Routing route(const LoadedWeights& layer, std::span<const float> hidden,
                                      std::span<float> sum) const = 0;
  /// sum += what an expert gives to the tokens that were routed to it.
  virtual void add_expert(const LoadedWeights& layer, int expert, const LoadedWeights& weights, const Routing& routing,
                          std::span<const float> hidden, std::span<float> sum) const = 0;
  /// hidden += sum.
  virtual void add_experts_sum(const LoadedWeights& layer, std::span<const float> sum,
                               std::span<float> hidden) const = 0;

  /// logits (T, vocab_size) of the final norm and head.
  virtual void logits(std::span<const float> hidden, std::span<float> logits) const = 0;
};

/// Opens the plug-in. Throws BackendUnavailable if it or libtorch is not there.
[[nodiscard]] std::unique_ptr<Decoder> make_decoder(const ModelConfig& config, const WeightStore& weights);

}  // namespace oscar
