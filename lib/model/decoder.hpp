// SPDX-License-Identifier: MIT
// The mathematics of one decoder layer for one sequence, in fp32, by libtorch. Implemented in a plug-in that is opened
// on the first call, so that commands which run no model never load libtorch. It reads no files and starts no threads:
// runner.hpp owns the order of layers and sequences, the weights and the parallelism. Methods may be called
// concurrently.
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
};

class Decoder {
 public:
  virtual ~Decoder() = default;

  /// hidden (T, hidden_size) = token embeddings.
  virtual void embed(std::span<const std::int32_t> tokens, std::span<float> hidden) const = 0;
  /// Converts a layer's weights; must be called before the other methods name that layer. Not concurrent.
  virtual void load_layer(int layer) = 0;
  /// Post-RoPE q (T, Hq, d), k and v (T, Hkv, d) of a loaded layer; positions start at 0.
  virtual void project(int layer, std::span<const float> hidden, std::span<float> q, std::span<float> k,
                       std::span<float> v) const = 0;
  /// Exact causal attention, for runs that replace nothing: out (T, Hq, d).
  virtual void attend(const QkvView& qkv, std::span<float> out) const = 0;
  /// hidden += o_proj(attention); hidden += mlp(norm(hidden)).
  virtual void finish_layer(int layer, std::span<const float> attention, std::span<float> hidden) const = 0;
  /// logits (T, vocab_size) of the final norm and head.
  virtual void logits(std::span<const float> hidden, std::span<float> logits) const = 0;
};

/// Opens the plug-in. Throws BackendUnavailable if it or libtorch is not there.
[[nodiscard]] std::unique_ptr<Decoder> make_decoder(const ModelConfig& config, const WeightStore& weights);

}  // namespace oscar
