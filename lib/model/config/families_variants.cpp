// SPDX-License-Identifier: MIT
// Llama's block with another norm, another MLP, other factors or other positions.
#include <cmath>

#include "model/config/families.hpp"

namespace oscar {
namespace {

/// An MLP without a gate.
BlockSpec ungated_block(const ConfigFile& file, const ModelConfig& config, const RopeDefaults& rope, const char* up,
                        const char* down) {
  BlockSpec block = plain_block(file, config, rope);
  block.mlp.gate = "";
  block.mlp.up = up;
  block.mlp.down = down;
  return block;
}

double factor(const ConfigFile& file, const char* name, double otherwise = 1) { return file.positive(name, otherwise); }

}  // namespace

/// Command R and R7B, Command A: norms that subtract the mean, MLP and attention side by side, interleaved positions,
/// which the layers that see all lack where others slide.
void describe_cohere(const ConfigFile& file, ModelConfig& config) {
  if (file.flag("use_qk_norm")) file.unsupported("\"use_qk_norm\": true in this model");
  const bool second = config.model_type == "cohere2";
  config.layer_norm = true;
  config.logit_scale = factor(file, "logit_scale", 0.0625);
  config.tie_word_embeddings = file.flag("tie_word_embeddings", true);
  BlockSpec block = plain_block(file, config, {10000});
  block.parallel = true;
  block.mlp_norm = block.mixer_norm;
  block.mixer.rope.interleaved = true;
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  const int period = second ? file.dimension("sliding_window_pattern", 4) : 1;
  const std::vector<std::string> types = read_layer_types(
      file, config, [&](int layer) { return (layer + 1) % period == 0 ? kFullAttention : kSlidingAttention; });
  fill_blocks(file, config, block, types);
  for (std::size_t layer = 0; second && layer < types.size(); ++layer) {
    if (types[layer] == kFullAttention) config.blocks[layer].mixer.rope.dim = 0;
  }
}

/// Granite 3 and 4 (those without Mamba layers and experts): factors on embeddings, scores, what is added, and logits.
void describe_granite(const ConfigFile& file, ModelConfig& config) {
  const bool fourth = config.model_type == "granitemoehybrid";
  config.embedding_scale = factor(file, "embedding_multiplier");
  config.logit_scale = 1 / factor(file, "logits_scaling");
  BlockSpec block = plain_block(file, config, {10000});
  block.residual_scale = factor(file, "residual_multiplier");
  block.mixer.softmax_scale = factor(file, "attention_multiplier");
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  block.mlp.bias = file.flag("mlp_bias");
  if (fourth) {
    if (file.dimension_or_zero("num_local_experts", 8) != 0) file.unsupported("\"num_local_experts\" in this model");
    block.mlp.intermediate = file.dimension("shared_intermediate_size", 1024);
    block.mlp.fused = "shared_mlp.input_linear";
    block.mlp.down = "shared_mlp.output_linear";
    if (file.text("position_embedding_type", "") != "rope") block.mixer.rope.dim = 0;
  }
  const char* otherwise = fourth ? kLinearAttention : kFullAttention;
  fill_blocks(file, config, block, read_layer_types(file, config, [&](int) { return otherwise; }));
}

void describe_starcoder2(const ConfigFile& file, ModelConfig& config) {
  config.layer_norm = config.norm_bias = true;
  config.tie_word_embeddings = file.flag("tie_word_embeddings", true);
  BlockSpec block = ungated_block(file, config, {10000}, "mlp.c_fc", "mlp.c_proj");
  block.mixer.qkv_bias = block.mixer.output_bias = block.mlp.bias = file.flag("use_bias", true);
  const char* type = file.has("sliding_window") ? kSlidingAttention : kFullAttention;
  fill_blocks(file, config, block, read_layer_types(file, config, [&](int) { return type; }));
}

/// Nemotron-4 and Minitron: half of each head turns.
void describe_nemotron(const ConfigFile& file, ModelConfig& config) {
  config.layer_norm = config.norm_bias = config.norm_plus_one = true;
  BlockSpec block = ungated_block(file, config, {10000, 0.5}, "mlp.up_proj", "mlp.down_proj");
  block.mlp.activation = Activation::kSquaredRelu;
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  block.mlp.bias = file.flag("mlp_bias");
  fill_blocks(file, config, block);
}

void describe_apertus(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = ungated_block(file, config, {12e6}, "mlp.up_proj", "mlp.down_proj");
  block.mlp.activation_prefix = "mlp.act_fn.";
  block.mixer_norm = "attention_layernorm";
  block.mlp_norm = "feedforward_layernorm";
  block.mixer.head_norm = HeadNorm::kPerHead;
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  fill_blocks(file, config, block);
}

/// Hunyuan: heads are normed behind RoPE.
BlockSpec hunyuan_block(const ConfigFile& file, const ModelConfig& config) {
  BlockSpec block = plain_block(file, config, {10000, 1, true});
  block.mixer.head_norm = HeadNorm::kPerHead;
  block.mixer.norm_after_rope = true;
  block.mixer.query_norm = "self_attn.query_layernorm";
  block.mixer.key_norm = "self_attn.key_layernorm";
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias");
  return block;
}

void describe_hunyuan(const ConfigFile& file, ModelConfig& config) {
  fill_blocks(file, config, hunyuan_block(file, config));
}

BlockSpec ernie_block(const ConfigFile& file, const ModelConfig& config) {
  BlockSpec block = plain_block(file, config, {5e5});
  block.mixer.rope.interleaved = true;
  block.mixer.qkv_bias = block.mixer.output_bias = block.mlp.bias = file.flag("use_bias");
  return block;
}

void describe_ernie(const ConfigFile& file, ModelConfig& config) {
  config.tie_word_embeddings = file.flag("tie_word_embeddings", true);
  fill_blocks(file, config, ernie_block(file, config));
}

/// Ministral 3: queries beyond the first context ask louder.
void describe_ministral3(const ConfigFile& file, ModelConfig& config) {
  describe_mistral(file, config);
  if (!file.has("rope_parameters")) return;
  const Json& members = file.json().at("rope_parameters");
  const double growth = members.contains("llama_4_scaling_beta") ? file.positive(members, "llama_4_scaling_beta") : 0;
  for (BlockSpec& block : config.blocks) block.mixer.query_growth = growth;
}

}  // namespace oscar
