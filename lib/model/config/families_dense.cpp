// SPDX-License-Identifier: MIT
// Dense models, and Gemma 4, whose experts stand beside a dense MLP.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "model/config/config_file.hpp"

namespace oscar {

/// Where windows are used: layers from max_window_layers on, or all if there is no such member; in Qwen2-MoE every
/// other one of those before.
void fill_qwen(const ConfigFile& file, ModelConfig& config, const BlockSpec& block) {
  const int first = file.dimension_or_zero("max_window_layers");
  const bool used = file.flag("use_sliding_window", true), slides = file.has("sliding_window") && used;
  const bool alternates = config.model_type == "qwen2_moe";
  const auto types = fill_blocks(file, config, block, [&](int layer) {
    const bool own = alternates ? layer % 2 == 0 && layer < first : layer >= first;
    return slides && own ? kSlidingAttention : kFullAttention;
  });
  if (!slides && std::ranges::count(types, kSlidingAttention) > 0) {
    file.unsupported("a layer that slides without \"use_sliding_window\"");
  }
}

void describe_qwen2(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.qkv_bias = true;
  fill_qwen(file, config, block);
}

void describe_qwen3(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.head_norm = HeadNorm::kPerHead;
  fill_qwen(file, config, block);
}

/// Hunyuan: heads are normed behind RoPE.
void describe_hunyuan(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.head_norm = HeadNorm::kPerHead;
  block.mixer.norm_after_rope = true;
  block.mixer.query_norm = "self_attn.query_layernorm";
  block.mixer.key_norm = "self_attn.key_layernorm";
  fill_blocks(file, config, block);
}

void describe_ernie(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.rope.interleaved = true;
  fill_blocks(file, config, block);
}

namespace {

/// Nothing is normed before a part of the layer, but what it adds.
void norm_what_is_added(BlockSpec& block) {
  block.mixer_norm = block.mlp_norm = "";
  block.mixer_out_norm = "post_attention_layernorm";
  block.mlp_out_norm = "post_feedforward_layernorm";
}

/// An MLP without a gate.
BlockSpec ungated_block(const ConfigFile& file, const ModelConfig& config, const char* up, const char* down) {
  BlockSpec block = plain_block(file, config);
  block.mlp.gate = "";
  block.mlp.up = up;
  block.mlp.down = down;
  return block;
}

/// Gemma 2 and later norm what a part of the layer reads, and what it adds.
void norm_before_and_after(BlockSpec& block) {
  block.mixer_out_norm = "post_attention_layernorm";
  block.mlp_norm = "pre_feedforward_layernorm";
  block.mlp_out_norm = "post_feedforward_layernorm";
}

/// Layers of each type turn in their own way.
void turn_by_layer(const ConfigFile& file, ModelConfig& config, const std::vector<std::string>& types,
                   double sliding_theta) {
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    config.blocks[layer].mixer.rope = read_rope(file, types[layer], config.head_dim, sliding_theta);
  }
}

void describe_llama(const ConfigFile& file, ModelConfig& config) {
  fill_blocks(file, config, plain_block(file, config));
}

void describe_mistral(const ConfigFile& file, ModelConfig& config) {
  fill_blocks(file, config, plain_block(file, config), all_windowed(file));
}

/// Phi-3, Phi-3.5 and Phi-4: fused matrices.
void describe_phi3(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.fused = "self_attn.qkv_proj";
  block.mlp.fused = "mlp.gate_up_proj";
  fill_blocks(file, config, block, all_windowed(file));
}

/// GLM-4: interleaved RoPE over half a head, fused MLP; the 0414 series norms what it adds, too.
void describe_glm4(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.rope.interleaved = true;
  block.mixer.output_bias = false;
  block.mlp.fused = "mlp.gate_up_proj";
  if (config.model_type == "glm4") {
    block.mixer_out_norm = "post_self_attn_layernorm";
    block.mlp_out_norm = "post_mlp_layernorm";
  }
  fill_blocks(file, config, block);
}

/// Gemma: norms of 1 + weight, scaled embeddings.
void describe_gemma1(const ConfigFile& file, ModelConfig& config) {
  config.norm_plus_one = true;
  config.embedding_scale = std::sqrt(1.0 * config.hidden_size);
  fill_blocks(file, config, plain_block(file, config));
}

/// Gemma 2 and 3: norms of 1 + weight before and after, scaled embeddings, global layers between sliding ones.
void describe_gemma(const ConfigFile& file, ModelConfig& config) {
  const bool third = config.model_type != "gemma2";
  config.norm_plus_one = true;
  config.embedding_scale = std::sqrt(1.0 * config.hidden_size);
  config.logit_soft_cap = file.positive("final_logit_softcapping", 0);
  const int period = third ? file.dimension("sliding_window_pattern", 1) : 2;
  BlockSpec block = plain_block(file, config);
  block.mixer.softmax_scale = 1 / std::sqrt(file.positive("query_pre_attn_scalar"));
  if (!third) block.mixer.soft_cap = file.positive("attn_logit_softcapping", 0);
  block.mixer.head_norm = third ? HeadNorm::kPerHead : HeadNorm::kNone;
  norm_before_and_after(block);
  const std::vector<std::string> types = fill_blocks(file, config, block, full_every(period, kSlidingAttention));
  if (third) turn_by_layer(file, config, types, file.positive("rope_local_base_freq"));
}

void describe_seed_oss(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.output_bias = file.flag("attention_out_bias");
  fill_blocks(file, config, block);
}

/// OLMo 2 and 3: norms of what is added instead of what is read, and of queries and keys of all heads at once. RoPE is
/// stretched in layers without a window only.
void describe_olmo(const ConfigFile& file, ModelConfig& config) {
  const bool third = config.model_type == "olmo3";
  BlockSpec block = plain_block(file, config);
  norm_what_is_added(block);
  block.mixer.head_norm = HeadNorm::kAllHeads;
  const std::vector<std::string> types = fill_blocks(file, config, block, full_every(third ? 4 : 1, kSlidingAttention));
  if (third) turn_by_layer(file, config, types, file.class_value("rope_theta").get<double>());
}

/// EXAONE 4: as OLMo, with norms of each head; between sliding layers, those that see all have no positions.
void describe_exaone4(const ConfigFile& file, ModelConfig& config) {
  const bool slides = file.has("sliding_window");
  BlockSpec block = plain_block(file, config);
  norm_what_is_added(block);
  block.mixer.head_norm = HeadNorm::kPerHead;
  const bool listed = !slides || file.has("layer_types");
  if (listed) (void)file.at("sliding_window_pattern");  // which is of no use then, and may be a text
  const int period = listed ? 1 : file.dimension("sliding_window_pattern");
  const std::vector<std::string> types = fill_blocks(file, config, block, full_every(period, kSlidingAttention));
  if (slides) drop_positions(config, types);
}

/// SmolLM3: Llama, but some layers have no positions.
void describe_smollm3(const ConfigFile& file, ModelConfig& config) {
  describe_llama(file, config);
  if (!file.flag("use_sliding_window")) (void)file.at("sliding_window");  // which is of no use then
  const Json& turning = file.at("no_rope_layers");
  const auto tells = [](const Json& turns) { return turns == 0 || turns == 1; };
  const bool listed = !turning.is_null(), complete = turning.is_array() && std::ssize(turning) >= config.num_layers;
  if (listed && !(complete && std::ranges::all_of(turning, tells))) {
    file.refuse("member \"no_rope_layers\" must be a list of " + std::to_string(config.num_layers) +
                " numbers, each 0 or 1");
  }
  const int interval = file.dimension("no_rope_layer_interval");
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto i = static_cast<std::size_t>(layer);
    const bool turns = listed ? turning[i] == 1 : (layer + 1) % interval != 0;
    if (!turns) config.blocks[i].mixer.rope.dim = 0;
  }
}

/// Command R and R7B, Command A: norms that subtract the mean, MLP and attention side by side, interleaved positions,
/// which the layers that see all lack where others slide.
void describe_cohere(const ConfigFile& file, ModelConfig& config) {
  const bool second = config.model_type == "cohere2";
  config.layer_norm = true;
  config.logit_scale = file.positive("logit_scale");
  BlockSpec block = plain_block(file, config);
  block.parallel = true;
  block.mlp_norm = block.mixer_norm;
  block.mixer.rope.interleaved = true;
  const int period = second ? file.dimension("sliding_window_pattern") : 1;
  const std::vector<std::string> types = fill_blocks(file, config, block, full_every(period, kSlidingAttention));
  if (second) drop_positions(config, types);
}

/// Granite 3 and 4 (those without Mamba layers and experts): factors on embeddings, scores, what is added, and logits.
void describe_granite(const ConfigFile& file, ModelConfig& config) {
  const bool fourth = config.model_type == "granitemoehybrid";
  config.embedding_scale = file.positive("embedding_multiplier");
  config.logit_scale = 1 / file.positive("logits_scaling");
  BlockSpec block = plain_block(file, config);
  block.residual_scale = file.positive("residual_multiplier");
  block.mixer.softmax_scale = file.positive("attention_multiplier");
  if (fourth) {
    if (file.dimension_or_zero("num_local_experts") != 0) file.unsupported_member("num_local_experts");
    (void)file.at("num_experts_per_tok");  // of none
    block.mlp.intermediate = file.dimension("shared_intermediate_size");
    block.mlp.fused = "shared_mlp.input_linear";
    block.mlp.down = "shared_mlp.output_linear";
    if (file.text("position_embedding_type", "") != "rope") block.mixer.rope.dim = 0;
  }
  fill_blocks(file, config, block, all_layers(fourth ? kLinearAttention : kFullAttention));
}

void describe_starcoder2(const ConfigFile& file, ModelConfig& config) {
  config.layer_norm = config.norm_bias = true;
  fill_blocks(file, config, ungated_block(file, config, "mlp.c_fc", "mlp.c_proj"), all_windowed(file));
}

/// Nemotron-4 and Minitron: half of each head turns.
void describe_nemotron(const ConfigFile& file, ModelConfig& config) {
  config.layer_norm = config.norm_bias = config.norm_plus_one = true;
  fill_blocks(file, config, ungated_block(file, config, "mlp.up_proj", "mlp.down_proj"));
}

void describe_apertus(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = ungated_block(file, config, "mlp.up_proj", "mlp.down_proj");
  block.mlp.activation_prefix = "mlp.act_fn.";
  block.mixer_norm = "attention_layernorm";
  block.mlp_norm = "feedforward_layernorm";
  block.mixer.head_norm = HeadNorm::kPerHead;
  fill_blocks(file, config, block);
}

/// Ministral 3: queries beyond the first context ask louder.
void describe_ministral3(const ConfigFile& file, ModelConfig& config) {
  describe_mistral(file, config);
  const ConfigFile members = rope_members(file, kFullAttention);
  const double growth = members.has("llama_4_scaling_beta") ? members.positive("llama_4_scaling_beta") : 0;
  for (BlockSpec& block : config.blocks) block.mixer.query_growth = growth;
}

/// Heads of global layers: "global_head_dim" and "num_global_key_value_heads", or what "per_layer_config" says.
void read_global_heads(const ConfigFile& file, std::size_t layer, MixerSpec& mixer) {
  if (file.has("per_layer_config")) {
    const Json& layers = file.at("per_layer_config");
    const ConfigFile own = file.part("per_layer_config", layers.value(std::to_string(layer), Json::object()));
    mixer.head_dim = own.dimension("head_dim", mixer.head_dim);
    mixer.num_kv_heads = own.dimension("num_key_value_heads", mixer.num_kv_heads);
    return;
  }
  mixer.head_dim = file.dimension("global_head_dim");
  if (file.flag("attention_k_eq_v")) {
    mixer.num_kv_heads = file.dimension("num_global_key_value_heads", mixer.num_kv_heads);
  }
}

/// Only heads of global layers may differ from those of others.
void check_layer_members(const ConfigFile& file, const std::vector<std::string>& types) {
  for (const auto& [layer, members] : file.at("per_layer_config").items()) {
    const auto number = static_cast<std::size_t>(std::atoi(layer.c_str()));
    const bool known = members.size() == members.count("head_dim") + members.count("num_key_value_heads");
    if (!known || number >= types.size() || types[number] != kFullAttention)
      file.unsupported_member("per_layer_config");
  }
}

/// Embeddings that tokens have for each layer (E2B, E4B).
void read_layer_inputs(const ConfigFile& file, ModelConfig& config) {
  const int dim = file.dimension_or_zero("hidden_size_per_layer_input");
  if (dim == 0) return;
  config.layer_input_vocab = file.dimension("vocab_size_per_layer_input");
  if (config.layer_input_vocab < config.vocab_size) {
    file.unsupported("a \"vocab_size_per_layer_input\" below \"vocab_size\"");
  }
  for (int layer = 0; layer < config.num_layers; ++layer) {
    BlockSpec& block = config.blocks[static_cast<std::size_t>(layer)];
    block.input_dim = dim, block.input_index = layer;
  }
}

/// The last num_kv_shared_layers read the keys and values of the last layer of their type before them (E2B, E4B).
void share_caches(const ConfigFile& file, ModelConfig& config, const std::vector<std::string>& types) {
  const int count = file.dimension_or_zero("num_kv_shared_layers"), first = config.num_layers - count;
  const bool wide = file.flag("use_double_wide_mlp");
  for (int layer = first; layer < config.num_layers; ++layer) {
    const auto own = static_cast<std::size_t>(layer);
    int source = first - 1;
    while (source >= 0 && types[static_cast<std::size_t>(source)] != types[own]) --source;
    if (source < 0) file.unsupported("\"num_kv_shared_layers\" beyond all layers of one type");
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

/// Gemma 4, dense, with experts, or with inputs of each layer: plain norm weights, normed values, global layers with
/// larger heads whose keys may serve as values, scores that are not divided, and a factor on what each layer leaves.
void describe_gemma4(const ConfigFile& file, ModelConfig& config) {
  config.embedding_scale = std::sqrt(1.0 * config.hidden_size);
  if (file.at("use_bidirectional_attention") == "all") file.unsupported_member("use_bidirectional_attention");
  config.logit_soft_cap = file.positive("final_logit_softcapping", 0);
  std::vector<std::string> types = read_layer_types(file, config, full_every(6, kSlidingAttention));
  types.back() = kFullAttention;
  check_layer_members(file, types);
  BlockSpec block = plain_block(file, config, kSlidingAttention);
  block.mlp.experts = read_experts(file);
  block.mixer.softmax_scale = 1;
  block.mixer.head_norm = HeadNorm::kPerHead;
  block.mixer.value_norm = true;
  norm_before_and_after(block);
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
    mixer.rope = read_rope(file, kFullAttention, mixer.head_dim);
  }
  read_layer_inputs(file, config);
  share_caches(file, config, types);
}

constexpr std::array kDense{
    Family{"apertus", describe_apertus},
    Family{"cohere", describe_cohere},
    Family{"cohere2", describe_cohere},
    Family{"ernie4_5", describe_ernie},
    Family{"exaone4", describe_exaone4},
    Family{"gemma", describe_gemma1},
    Family{"gemma2", describe_gemma},
    Family{"gemma3", describe_gemma},
    Family{"gemma3_text", describe_gemma},
    Family{"gemma4_text", describe_gemma4},
    Family{"gemma4_unified_text", describe_gemma4},
    Family{"glm", describe_glm4},
    Family{"glm4", describe_glm4},
    Family{"granite", describe_granite},
    Family{"granitemoehybrid", describe_granite},
    Family{"hunyuan_v1_dense", describe_hunyuan},
    Family{"llama", describe_llama},
    Family{"ministral3", describe_ministral3},
    Family{"mistral", describe_mistral},
    Family{"nemotron", describe_nemotron},
    Family{"olmo2", describe_olmo},
    Family{"olmo3", describe_olmo},
    Family{"phi3", describe_phi3},
    Family{"qwen2", describe_qwen2},
    Family{"qwen2_5_vl", describe_qwen2},
    Family{"qwen2_5_vl_text", describe_qwen2},
    Family{"qwen3", describe_qwen3},
    Family{"qwen3_vl_text", describe_qwen3},
    Family{"seed_oss", describe_seed_oss},
    Family{"smollm3", describe_smollm3},
    Family{"starcoder2", describe_starcoder2},
};

}  // namespace

std::span<const Family> dense_families() { return kDense; }

}  // namespace oscar
