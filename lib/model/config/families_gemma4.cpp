// SPDX-License-Identifier: MIT
#include <cmath>

#include "model/config/families.hpp"

namespace oscar {
namespace {

/// Heads of global layers: "global_head_dim" and "num_global_key_value_heads", or what "per_layer_config" says.
void read_global_heads(const ConfigFile& file, std::size_t layer, MixerSpec& mixer) {
  mixer.head_dim = file.dimension("global_head_dim", 512);
  if (file.flag("attention_k_eq_v")) {
    mixer.num_kv_heads = file.dimension("num_global_key_value_heads", mixer.num_kv_heads);
  }
  if (!file.has("per_layer_config")) return;
  const Json& layers = file.json().at("per_layer_config");
  const auto own = layers.is_object() ? layers.find(std::to_string(layer)) : layers.end();
  if (!layers.is_object() || own == layers.end()) return;
  mixer.head_dim = own->value("head_dim", mixer.head_dim);
  mixer.num_kv_heads = own->value("num_key_value_heads", mixer.num_kv_heads);
}

/// Embeddings that tokens have for each layer (E2B, E4B).
void read_layer_inputs(const ConfigFile& file, ModelConfig& config) {
  const int dim = file.dimension_or_zero("hidden_size_per_layer_input", 256);
  if (dim == 0) return;
  config.layer_input_vocab = file.dimension("vocab_size_per_layer_input", 262144);
  if (config.layer_input_vocab < config.vocab_size) {
    file.unsupported("a \"vocab_size_per_layer_input\" below \"vocab_size\"");
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    config.blocks[static_cast<std::size_t>(layer)].input_dim = dim;
    config.blocks[static_cast<std::size_t>(layer)].input_index = layer;
  }
}

/// The last num_kv_shared_layers read the keys and values of the last layer of their type before them (E2B, E4B).
void share_caches(const ConfigFile& file, ModelConfig& config, const std::vector<std::string>& types) {
  const int count = file.dimension_or_zero("num_kv_shared_layers", 0), first = config.num_layers - count;
  const bool wide = file.flag("use_double_wide_mlp");
  for (int layer = first; layer < config.num_layers; ++layer) {
    const auto own = static_cast<std::size_t>(layer);
    int source = first - 1;
    while (source >= 0 && types[static_cast<std::size_t>(source)] != types[own]) --source;
    if (source < 0) file.refuse("no layer makes the keys and values that layer " + std::to_string(layer) + " shares");
    BlockSpec& block = config.blocks[own];
    block.mixer.own_kv = false;
    block.mixer.kv_layer = config.blocks[static_cast<std::size_t>(source)].mixer.kv_layer = source;
    if (wide) block.mlp.intermediate *= 2;
  }
}

/// Beside the MLP, which takes the place of the expert for all tokens.
ExpertsSpec read_experts(const ConfigFile& file) {
  ExpertsSpec experts;
  if (!file.flag("enable_moe_block")) return experts;
  experts.count = file.dimension("num_experts");
  experts.top_k = file.dimension("top_k_experts");
  experts.intermediate = file.dimension("moe_intermediate_size");
  experts.normalize = true;
  experts.gate = "router.proj";
  experts.router_scale = "router.scale";
  experts.expert_scale = "router.per_expert_scale";
  experts.layout = ExpertLayout::kStacked;
  experts.prefix = "experts";
  experts.shared = "mlp";
  experts.shared_intermediate = file.dimension("intermediate_size");
  experts.input_norm = "pre_feedforward_layernorm_2";
  experts.routed_norm = "post_feedforward_layernorm_2";
  experts.shared_norm = "post_feedforward_layernorm_1";
  return experts;
}

}  // namespace

/// Gemma 4, dense, with experts, or with inputs of each layer: plain norm weights, normed values, global layers with
/// larger heads whose keys may serve as values, scores that are not divided, and a factor on what each layer leaves.
void describe_gemma4(const ConfigFile& file, ModelConfig& config) {
  if (file.text("use_bidirectional_attention", "") == "all") {
    file.unsupported("\"use_bidirectional_attention\": \"all\"");
  }
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.tie_word_embeddings = file.flag("tie_word_embeddings", true);
  config.logit_soft_cap = file.positive("final_logit_softcapping", 0);
  std::vector<std::string> types = read_layer_types(
      file, config, [](int layer) { return (layer + 1) % 6 == 0 ? kFullAttention : kSlidingAttention; });
  types.back() = kFullAttention;
  BlockSpec block = plain_block(file, config, {10000}, kSlidingAttention);
  block.mlp.activation = Activation::kGeluTanh;
  block.mlp.experts = read_experts(file);
  block.mixer.softmax_scale = 1;
  block.mixer.head_norm = HeadNorm::kPerHead;
  block.mixer.value_norm = true;
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  block.mixer_out_norm = "post_attention_layernorm";
  block.mlp_norm = "pre_feedforward_layernorm";
  block.mlp_out_norm = "post_feedforward_layernorm";
  block.scalar = "layer_scalar";
  fill_blocks(file, config, block, types);
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == kSlidingAttention) continue;
    MixerSpec& mixer = config.blocks[layer].mixer;
    read_global_heads(file, layer, mixer);
    if (mixer.num_kv_heads < 1 || mixer.head_dim < 1 || mixer.num_heads % mixer.num_kv_heads != 0) {
      file.refuse("the heads of global layers do not fit together");
    }
    mixer.value_dim = mixer.head_dim;
    mixer.value_is_key = file.flag("attention_k_eq_v");
    mixer.rope = read_rope(file, kFullAttention, mixer.head_dim, {1e6, 0.25});
  }
  read_layer_inputs(file, config);
  share_caches(file, config, types);
}

}  // namespace oscar
