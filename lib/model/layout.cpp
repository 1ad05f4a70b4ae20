// SPDX-License-Identifier: MIT
#include "model/layout.hpp"

#include "base/errors.hpp"

namespace oscar {

std::vector<WeightSpec> expected_weights(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, mlp = config.intermediate_size, vocab = config.vocab_size;
  const std::int64_t head_dim = config.head_dim;
  const std::int64_t queries = config.num_attention_heads * head_dim, keys = config.num_key_value_heads * head_dim;
  std::vector<WeightSpec> specs{{kEmbeddingName, {vocab, hidden}}, {kFinalNormName, {hidden}}};
  if (!config.tie_word_embeddings) specs.push_back({head_weight_name(config), {vocab, hidden}});
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto add = [&](const char* part, std::vector<std::int64_t> shape) {
      specs.push_back({layer_weight_name(layer, part), std::move(shape)});
    };
    add("input_layernorm", {hidden});
    add("self_attn.q_proj", {queries, hidden});
    add("self_attn.k_proj", {keys, hidden});
    add("self_attn.v_proj", {keys, hidden});
    add("self_attn.q_norm", {head_dim});
    add("self_attn.k_norm", {head_dim});
    add("self_attn.o_proj", {hidden, queries});
    add("post_attention_layernorm", {hidden});
    add("mlp.gate_proj", {mlp, hidden});
    add("mlp.up_proj", {mlp, hidden});
    add("mlp.down_proj", {hidden, mlp});
  }
  return specs;
}

void check_weights(const ModelConfig& config, const WeightStore& weights, const std::string& where) {
  for (const WeightSpec& spec : expected_weights(config)) {
    const TensorRef& tensor = weights.at(spec.name);
    if (tensor.shape != spec.shape) {
      throw DataError("weight " + spec.name + " is " + shape_text(tensor.shape) + ", config.json asks for " +
                          shape_text(spec.shape),
                      where, "check that config.json and the weights belong together, or fetch the checkpoint again");
    }
    if (!is_activation_dtype(tensor.dtype)) {
      throw DataError("weight " + spec.name + " is of " + std::string(name_of(tensor.dtype)), where,
                      "use a checkpoint in bfloat16, float16 or float32");
    }
  }
}

}  // namespace oscar
