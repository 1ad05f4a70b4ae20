// SPDX-License-Identifier: MIT
// Which weights a checkpoint with given blocks has, under which names, in which shapes: the only place that knows.
// Linear weights are [out, in], as PyTorch stores them. Non-goal: what is computed with them (run/decoder.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config/config.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {

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
