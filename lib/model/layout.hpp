// SPDX-License-Identifier: MIT
// The supported checkpoint layout as data: which weights a Qwen3 (dense) checkpoint has, under which names, in which
// shapes. Linear weights are [out, in], as PyTorch stores them. Non-goal: what is computed with them (decoder.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.hpp"
#include "model/decoder.hpp"

namespace oscar {

struct WeightSpec {
  std::string name;
  std::vector<std::int64_t> shape;
};

/// "model.layers.3.self_attn.q_proj.weight" from 3 and "self_attn.q_proj".
[[nodiscard]] inline std::string layer_weight_name(int layer, const std::string& part) {
  return "model.layers." + std::to_string(layer) + "." + part + ".weight";
}
inline constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
inline constexpr const char* kFinalNormName = "model.norm.weight";
/// The output head; the embedding if the two are tied.
[[nodiscard]] inline std::string head_weight_name(const ModelConfig& config) {
  return config.tie_word_embeddings ? kEmbeddingName : "lm_head.weight";
}

/// Every weight of a checkpoint with this config.
[[nodiscard]] std::vector<WeightSpec> expected_weights(const ModelConfig& config);

/// Throws DataError that names the first weight which is missing, has another shape, or is not of a float type.
void check_weights(const ModelConfig& config, const WeightStore& weights, const std::string& where);

}  // namespace oscar
