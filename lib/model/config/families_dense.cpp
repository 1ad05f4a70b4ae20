// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "model/config/families.hpp"

namespace oscar {
namespace {

Activation read_activation(const ConfigFile& file) {
  const std::string name = file.text("hidden_activation", file.text("hidden_act", "silu"));
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh" || (name == "gelu" && file.text("model_type", "") == "gemma")) {
    return Activation::kGeluTanh;
  }
  if (name == "relu2") return Activation::kSquaredRelu;
  if (name == "xielu") return Activation::kXielu;
  file.unsupported("\"hidden_act\": \"" + name + "\"");
}

/// A window that holds the whole context is none.
int read_window(const ConfigFile& file) {
  const int window = file.dimension("sliding_window");
  return window >= file.dimension("max_position_embeddings") ? 0 : window;
}

}  // namespace

BlockSpec plain_block(const ConfigFile& file, const ModelConfig& config, const RopeDefaults& rope,
                      const std::string& layer_type) {
  BlockSpec block;
  block.mixer.num_heads = config.num_attention_heads;
  block.mixer.num_kv_heads = config.num_key_value_heads;
  block.mixer.head_dim = block.mixer.value_dim = config.head_dim;
  block.mixer.softmax_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  block.mixer.rope = read_rope(file, layer_type, config.head_dim, rope);
  block.mlp.activation = read_activation(file);
  block.mlp.intermediate = file.dimension("intermediate_size");
  return block;
}

std::vector<std::string> read_layer_types(const ConfigFile& file, const ModelConfig& config,
                                          const std::function<std::string(int)>& otherwise) {
  std::vector<std::string> types;
  if (!file.has("layer_types")) {
    for (int layer = 0; layer < config.num_layers; ++layer) types.push_back(otherwise(layer));
    return types;
  }
  const Json& list = file.json().at("layer_types");
  if (!list.is_array() || list.size() != static_cast<std::size_t>(config.num_layers)) {
    file.refuse("member \"layer_types\" must be a list of " + plural(config.num_layers, "name"));
  }
  for (const Json& type : list) {
    if (type == "attention") {  // Granite's name
      types.emplace_back(kFullAttention);
      continue;
    }
    if (type != kFullAttention && type != kSlidingAttention && type != kLinearAttention) {
      file.unsupported("the layer type " + type.dump());
    }
    types.push_back(type.get<std::string>());
  }
  return types;
}

void fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block,
                 const std::vector<std::string>& layer_types) {
  config.blocks.assign(static_cast<std::size_t>(config.num_layers), block);
  for (std::size_t layer = 0; layer < layer_types.size(); ++layer) {
    if (layer_types[layer] == kLinearAttention) file.unsupported("the layer type \"linear_attention\" in this model");
    if (layer_types[layer] == kSlidingAttention) config.blocks[layer].mixer.window = read_window(file);
  }
}

void fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block) {
  fill_blocks(file, config, block, read_layer_types(file, config, [](int) { return kFullAttention; }));
}

namespace {

/// Layers from max_window_layers on slide if use_sliding_window is set.
void fill_qwen(const ConfigFile& file, ModelConfig& config, const BlockSpec& block) {
  const bool slides = file.flag("use_sliding_window") && file.has("sliding_window");
  const int first = slides ? file.dimension("max_window_layers", 28) : config.num_layers;
  fill_blocks(file, config, block, read_layer_types(file, config, [&](int layer) {
                return layer >= first ? kSlidingAttention : kFullAttention;
              }));
}

/// Nothing is normed before a part of the layer, but what it adds.
void norm_what_is_added(BlockSpec& block) {
  block.mixer_norm = block.mlp_norm = "";
  block.mixer_out_norm = "post_attention_layernorm";
  block.mlp_out_norm = "post_feedforward_layernorm";
}

/// All layers slide if there is a window.
void fill_windowed(const ConfigFile& file, ModelConfig& config, const BlockSpec& block) {
  const char* type = file.has("sliding_window") ? kSlidingAttention : kFullAttention;
  fill_blocks(file, config, block, read_layer_types(file, config, [&](int) { return type; }));
}

}  // namespace

void describe_qwen2(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config, {});
  block.mixer.qkv_bias = true;
  fill_qwen(file, config, block);
}

void describe_qwen3(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config, {});
  block.mixer.head_norm = HeadNorm::kPerHead;
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  fill_qwen(file, config, block);
}

void describe_llama(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config, {10000});
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  block.mlp.bias = file.flag("mlp_bias");
  fill_blocks(file, config, block);
}

void describe_mistral(const ConfigFile& file, ModelConfig& config) {
  fill_windowed(file, config, plain_block(file, config, {10000}));
}

/// Phi-3, Phi-3.5 and Phi-4: fused matrices.
void describe_phi3(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config, {10000});
  block.mixer.fused = "self_attn.qkv_proj";
  block.mlp.fused = "mlp.gate_up_proj";
  fill_windowed(file, config, block);
}

/// GLM-4: interleaved RoPE over half a head, fused MLP; the 0414 series norms what it adds, too.
void describe_glm4(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config, {10000, 0.5});
  block.mixer.rope.interleaved = true;
  block.mixer.qkv_bias = file.flag("attention_bias", config.model_type == "glm4");
  block.mlp.fused = "mlp.gate_up_proj";
  if (config.model_type == "glm4") {
    block.mixer_out_norm = "post_self_attn_layernorm";
    block.mlp_out_norm = "post_mlp_layernorm";
  }
  fill_blocks(file, config, block);
}

/// Gemma: norms of 1 + weight, scaled embeddings. The first published files name another activation than they mean.
void describe_gemma1(const ConfigFile& file, ModelConfig& config) {
  config.norm_plus_one = true;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.tie_word_embeddings = file.flag("tie_word_embeddings", true);
  BlockSpec block = plain_block(file, config, {10000});
  block.mlp.activation = Activation::kGeluTanh;
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  fill_blocks(file, config, block);
}

/// Gemma 2 and 3: norms of 1 + weight before and after, scaled embeddings, global layers between sliding ones.
void describe_gemma(const ConfigFile& file, ModelConfig& config) {
  const bool third = config.model_type != "gemma2";
  config.norm_plus_one = true;
  config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
  config.tie_word_embeddings = file.flag("tie_word_embeddings", true);
  config.logit_soft_cap = file.positive("final_logit_softcapping", 0);
  if (file.flag("use_bidirectional_attention")) file.unsupported("\"use_bidirectional_attention\": true");
  const int period = file.dimension("sliding_window_pattern", third ? 6 : 2);
  const std::vector<std::string> types = read_layer_types(
      file, config, [&](int layer) { return (layer + 1) % period == 0 ? kFullAttention : kSlidingAttention; });
  BlockSpec block = plain_block(file, config, {third ? 1e6 : 1e4});
  block.mlp.activation = Activation::kGeluTanh;
  block.mixer.softmax_scale = 1 / std::sqrt(file.positive("query_pre_attn_scalar", 256));
  block.mixer.soft_cap = file.positive("attn_logit_softcapping", 0);
  block.mixer.head_norm = third ? HeadNorm::kPerHead : HeadNorm::kNone;
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  block.mixer_out_norm = "post_attention_layernorm";
  block.mlp_norm = "pre_feedforward_layernorm";
  block.mlp_out_norm = "post_feedforward_layernorm";
  fill_blocks(file, config, block, types);
  if (!third) return;
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == kSlidingAttention) {
      config.blocks[layer].mixer.rope = read_local_rope(file, config.head_dim);
    }
  }
}

void describe_seed_oss(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config, {10000});
  block.mixer.qkv_bias = file.flag("attention_bias", true);
  block.mixer.output_bias = file.flag("attention_out_bias");
  block.mlp.bias = file.flag("mlp_bias");
  fill_blocks(file, config, block);
}

/// OLMo 2 and 3: norms of what is added instead of what is read, and of queries and keys of all heads at once. RoPE is
/// stretched in layers without a window only.
void describe_olmo(const ConfigFile& file, ModelConfig& config) {
  const bool third = config.model_type == "olmo3";
  BlockSpec block = plain_block(file, config, {5e5});
  norm_what_is_added(block);
  block.mixer.head_norm = HeadNorm::kAllHeads;
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  const std::vector<std::string> types = read_layer_types(
      file, config, [&](int layer) { return third && (layer + 1) % 4 != 0 ? kSlidingAttention : kFullAttention; });
  fill_blocks(file, config, block, types);
  const bool nested = file.has("rope_parameters") && file.json().at("rope_parameters").contains(kSlidingAttention);
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == kFullAttention) continue;
    RopeSpec plain;
    plain.dim = config.head_dim;
    plain.theta = block.mixer.rope.theta;
    config.blocks[layer].mixer.rope = nested ? read_rope(file, kSlidingAttention, config.head_dim, {5e5}) : plain;
  }
}

/// EXAONE 4: as OLMo, with norms of each head; between sliding layers, those that see all have no positions.
void describe_exaone4(const ConfigFile& file, ModelConfig& config) {
  const bool slides = file.has("sliding_window");
  BlockSpec block = plain_block(file, config, {10000});
  norm_what_is_added(block);
  block.mixer.head_norm = HeadNorm::kPerHead;
  const auto by_pattern = [&](int layer) {
    return slides && (layer + 1) % file.dimension("sliding_window_pattern", 4) != 0 ? kSlidingAttention
                                                                                    : kFullAttention;
  };
  const std::vector<std::string> types = read_layer_types(file, config, by_pattern);
  fill_blocks(file, config, block, types);
  for (std::size_t layer = 0; slides && layer < types.size(); ++layer) {
    if (types[layer] == kFullAttention) config.blocks[layer].mixer.rope.dim = 0;
  }
}

/// SmolLM3: Llama, but some layers have no positions.
void describe_smollm3(const ConfigFile& file, ModelConfig& config) {
  describe_llama(file, config);
  if (file.flag("use_sliding_window")) file.unsupported("\"use_sliding_window\": true in this model");
  config.tie_word_embeddings = file.flag("tie_word_embeddings", true);
  const Json turning = file.json().value("no_rope_layers", Json());
  const int interval = file.dimension("no_rope_layer_interval", 4);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    const bool turns = turning.is_array() && i < turning.size() ? turning[i] == 1 : (layer + 1) % interval != 0;
    if (!turns) config.blocks[i].mixer.rope.dim = 0;
  }
}

}  // namespace oscar
