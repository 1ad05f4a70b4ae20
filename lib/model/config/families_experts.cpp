// SPDX-License-Identifier: MIT
// Mixtures of experts, and models that mix kinds of attention.
#include <array>
#include <cmath>

#include "model/config/config_file.hpp"

namespace oscar {
namespace {

/// Which of the layers have experts: a list of exceptions, and every n-th.
bool sparse_layer(const ConfigFile& file, int layer) {
  for (const Json& dense : file.at("mlp_only_layers")) {
    if (!dense.is_number_integer()) file.refuse("member \"mlp_only_layers\" must be a list of whole numbers");
    if (dense == layer) return false;
  }
  return (layer + 1) % file.dimension("decoder_sparse_step", 1) == 0;
}

void use_everywhere(ModelConfig& config, const ExpertsSpec& experts) {
  for (BlockSpec& block : config.blocks) block.mlp.experts = experts;
}

/// Dense MLPs in the layers that `sparse` denies.
template <class Sparse>
void keep_dense(ModelConfig& config, const Sparse& sparse) {
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (!sparse(layer)) config.blocks[static_cast<std::size_t>(layer)].mlp.experts = {};
  }
}

/// Dense MLPs in the first layers, as many as the file says.
void keep_first_dense(const ConfigFile& file, ModelConfig& config) {
  const int dense = file.dimension_or_zero("first_k_dense_replace");
  keep_dense(config, [&](int layer) { return layer >= dense; });
}

ExpertsSpec qwen_experts(const ConfigFile& file) {
  ExpertsSpec experts;
  experts.count = file.dimension_or_zero("num_experts");
  if (experts.count == 0) return experts;
  experts.top_k = file.dimension("num_experts_per_tok");
  experts.intermediate =
      file.dimension(file.has("moe_intermediate_size") ? "moe_intermediate_size" : "intermediate_size");
  experts.normalize = file.flag("norm_topk_prob", true);
  if (file.has("shared_expert_intermediate_size")) {
    experts.shared_intermediate = file.dimension("shared_expert_intermediate_size");
    experts.shared = "mlp.shared_expert";
    experts.shared_gate = "mlp.shared_expert_gate";
  }
  return experts;
}

/// Mixtral's names of an expert's matrices.
void name_as_mixtral(ExpertsSpec& experts) {
  experts.gate = "block_sparse_moe.gate";
  experts.prefix = "block_sparse_moe.experts";
  experts.gate_proj = "w1";
  experts.up_proj = "w3";
  experts.down_proj = "w2";
}

/// A number, or a list of it for all layers.
int same_everywhere(const ConfigFile& file, const char* name) {
  const Json& member = file.at(name);
  if (!member.is_array() || member.empty()) return file.dimension(name);
  for (const Json& value : member) {
    if (value != member.front()) file.unsupported(std::string("layers that differ in \"") + name + "\"");
  }
  return ConfigFile({{name, member.front()}}, name).dimension(name);
}

ExpertsSpec local_experts(const ConfigFile& file) {
  ExpertsSpec experts;
  experts.count = file.dimension("num_local_experts");
  experts.top_k = file.dimension("num_experts_per_tok");
  experts.intermediate = file.dimension("intermediate_size");
  experts.normalize = true;
  return experts;
}

/// Sigmoid scores, a bias for the choice, groups, experts for all tokens: DeepSeek-V3 and GLM-4.5 on.
ExpertsSpec grouped_experts(const ConfigFile& file) {
  ExpertsSpec experts;
  experts.count = file.dimension("n_routed_experts");
  experts.top_k = file.dimension("num_experts_per_tok");
  experts.intermediate = file.dimension("moe_intermediate_size");
  experts.router = Router::kSigmoid;
  experts.choice_bias = "mlp.gate.e_score_correction_bias";
  experts.normalize = file.flag("norm_topk_prob");
  experts.scale = file.positive("routed_scaling_factor");
  experts.groups = file.dimension("n_group", 1);
  experts.top_groups = file.dimension("topk_group", 1);
  if (experts.count % experts.groups != 0) file.refuse("n_routed_experts is not a multiple of n_group");
  experts.shared = "mlp.shared_experts";
  experts.shared_intermediate = experts.intermediate * file.dimension("n_shared_experts");
  return experts;
}

void describe_mixtral(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mlp.experts = local_experts(file);
  name_as_mixtral(block.mlp.experts);
  fill_blocks(file, config, block, all_windowed(file));
}

void describe_qwen3_moe(const ConfigFile& file, ModelConfig& config) {
  describe_qwen3(file, config);
  use_everywhere(config, qwen_experts(file));
  keep_dense(config, [&](int layer) { return sparse_layer(file, layer); });
}

void describe_qwen2_moe(const ConfigFile& file, ModelConfig& config) {
  describe_qwen2(file, config);
  for (BlockSpec& block : config.blocks) {
    block.mixer.qkv_bias = file.flag("qkv_bias");
    block.mlp.experts = qwen_experts(file);
  }
  keep_dense(config, [&](int layer) { return sparse_layer(file, layer); });
}

/// dots.llm1: Qwen3's attention, DeepSeek's experts.
void describe_dots1(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.head_norm = HeadNorm::kPerHead;
  block.mlp.experts = grouped_experts(file);
  fill_qwen(file, config, block);
  keep_first_dense(file, config);
}

/// Half of each head turns; the first layers are dense.
void describe_glm4_moe(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.output_bias = false;
  block.mixer.head_norm = file.flag("use_qk_norm") ? HeadNorm::kPerHead : HeadNorm::kNone;
  block.mlp.experts = grouped_experts(file);
  fill_blocks(file, config, block);
  keep_first_dense(file, config);
}

/// Sinks, every second layer slides, experts with biases, in four-bit floats as published.
void describe_gpt_oss(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  if (block.mlp.activation != Activation::kSilu) file.unsupported_member("hidden_act");
  block.mixer.sinks = true;
  block.mlp.activation = Activation::kClampedSwish;
  block.mlp.clamp = file.positive("swiglu_limit");
  block.mlp.alpha = file.positive("swiglu_alpha");
  ExpertsSpec& experts = block.mlp.experts;
  experts = local_experts(file);
  experts.router = Router::kSoftmaxOfChosen;
  experts.gate = "mlp.router";
  experts.gate_bias = true;
  experts.layout = ExpertLayout::kStackedTransposed;
  fill_blocks(file, config, block, full_every(2, kSlidingAttention));
}

/// Norms over all heads at once, part of each head turns.
void describe_minimax_m2(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.head_norm = HeadNorm::kAllHeads;
  block.mlp.experts = local_experts(file);
  block.mlp.experts.router = Router::kSigmoid;
  block.mlp.experts.choice_bias = "block_sparse_moe.e_score_correction_bias";
  name_as_mixtral(block.mlp.experts);
  fill_blocks(file, config, block);
}

/// Qwen3-Next and Qwen3.5: gated delta layers, and attention with an output gate in every fourth.
void describe_qwen_hybrid(const ConfigFile& file, ModelConfig& config) {
  const bool next = config.model_type == "qwen3_next";
  config.norm_plus_one = true;
  BlockSpec block = plain_block(file, config);
  if (block.mlp.activation != Activation::kSilu) file.unsupported_member("hidden_act");
  block.mixer.head_norm = HeadNorm::kPerHead;
  block.mixer.output_gate = true;
  block.mlp.experts = qwen_experts(file);
  MixerSpec delta;
  delta.kind = MixerKind::kGatedDelta;
  delta.num_heads = file.dimension("linear_num_value_heads");
  delta.num_kv_heads = file.dimension("linear_num_key_heads");
  delta.head_dim = file.dimension("linear_key_head_dim");
  delta.value_dim = file.dimension("linear_value_head_dim");
  delta.conv_width = file.dimension("linear_conv_kernel_dim");
  delta.fused_delta = next;
  if (delta.num_heads % delta.num_kv_heads != 0) {
    file.refuse("linear_num_value_heads is not a multiple of linear_num_key_heads");
  }
  const int period = file.dimension("full_attention_interval");
  for (const std::string& type : read_layer_types(file, config, full_every(period, kLinearAttention))) {
    config.blocks.push_back(block);
    if (type == kSlidingAttention) file.unsupported("the layer type \"sliding_attention\" in this model");
    if (type == kLinearAttention) config.blocks.back().mixer = delta;
  }
  keep_dense(config, [&](int layer) { return sparse_layer(file, layer); });
}

/// OLMoE: queries and keys of all heads are normed at once.
void describe_olmoe(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  block.mixer.head_norm = HeadNorm::kAllHeads;
  block.mlp.experts = qwen_experts(file);
  fill_blocks(file, config, block);
}

void describe_hunyuan_moe(const ConfigFile& file, ModelConfig& config) {
  describe_hunyuan(file, config);
  ExpertsSpec experts;
  experts.count = same_everywhere(file, "num_experts");
  experts.top_k = same_everywhere(file, "moe_topk");
  experts.intermediate = file.has("moe_intermediate_size") ? same_everywhere(file, "moe_intermediate_size")
                                                           : file.dimension("intermediate_size");
  experts.normalize = true;
  experts.gate = "mlp.gate.wg";
  experts.shared = "mlp.shared_mlp";
  experts.shared_intermediate = file.dimension("intermediate_size");
  use_everywhere(config, experts);
}

/// ERNIE 4.5: softmax scores, with a bias for the choice.
void describe_ernie_moe(const ConfigFile& file, ModelConfig& config) {
  describe_ernie(file, config);
  if (config.blocks.front().mlp.bias) file.unsupported_member("use_bias");
  ExpertsSpec experts;
  experts.count = file.dimension("moe_num_experts");
  experts.top_k = file.dimension("moe_k");
  experts.intermediate = file.dimension("moe_intermediate_size");
  experts.normalize = true;
  experts.choice_bias = "mlp.moe_statics.e_score_correction_bias";
  experts.shared_intermediate = experts.intermediate * file.dimension_or_zero("moe_num_shared_experts");
  if (experts.shared_intermediate > 0) experts.shared = "mlp.shared_experts";
  use_everywhere(config, experts);
  const int first = file.dimension_or_zero("moe_layer_start_index"), period = file.dimension("moe_layer_interval");
  const bool ends = file.at("moe_layer_end_index") != -1;
  const int last = ends ? file.dimension_or_zero("moe_layer_end_index") : config.num_layers - 1;
  keep_dense(config, [&](int layer) { return (layer + 1) % period == 0 && layer >= first && layer <= last; });
}

/// Multi-head latent attention; the cache is the latent and one rotated key.
void describe_deepseek_v3(const ConfigFile& file, ModelConfig& config) {
  BlockSpec block = plain_block(file, config);
  if (block.mlp.bias) file.unsupported_member("mlp_bias");
  MixerSpec& m = block.mixer;
  m.kind = MixerKind::kLatentAttention;
  m.latent_dim = file.dimension("kv_lora_rank");
  m.query_latent_dim = file.dimension("q_lora_rank", 0);
  m.nope_dim = file.dimension("qk_nope_head_dim");
  m.head_value_dim = file.dimension("v_head_dim");
  const int whole = m.nope_dim + config.head_dim;
  if (file.dimension("qk_head_dim", whole) != whole) file.unsupported_member("qk_head_dim");
  m.rope.interleaved = m.rope.split_pairs = file.flag("rope_interleave");
  m.num_kv_heads = 1;
  m.head_dim = m.latent_dim + m.rope.dim;
  m.value_dim = m.latent_dim;
  m.softmax_scale = m.rope.sharpening / std::sqrt(static_cast<double>(m.nope_dim + m.rope.dim));
  block.mlp.experts = grouped_experts(file);
  fill_blocks(file, config, block);
  keep_first_dense(file, config);
}

/// Softmax scores without a bias; the best expert of a group speaks for it.
void describe_deepseek_v2(const ConfigFile& file, ModelConfig& config) {
  describe_deepseek_v3(file, config);
  const std::string method = file.text("topk_method", "");
  const bool grouped = method == "group_limited_greedy";
  if (!grouped && method != "greedy") file.unsupported_member("topk_method");
  ExpertsSpec experts = grouped_experts(file);
  experts.router = Router::kSoftmax;
  experts.choice_bias = "";
  experts.normalize = false;
  experts.group_votes = 1;
  if (!grouped) experts.groups = experts.top_groups = 1;
  for (BlockSpec& block : config.blocks) {
    block.mixer.rope.interleaved = true;
    block.mixer.rope.split_pairs = false;
    block.mlp.experts = experts;
  }
  keep_first_dense(file, config);
}

/// GLM-4.7-Flash: DeepSeek-V3 whose first layer is dense.
void describe_glm4_moe_lite(const ConfigFile& file, ModelConfig& config) {
  describe_deepseek_v3(file, config);
  const Json& types = file.at("mlp_layer_types");
  use_everywhere(config, grouped_experts(file));
  if (types.is_null()) return keep_dense(config, [](int layer) { return layer >= 1; });
  if (!types.is_array() || types.size() != config.blocks.size()) {
    file.refuse("member \"mlp_layer_types\" must be a list of " + std::to_string(config.num_layers) + " names");
  }
  keep_dense(config, [&](int layer) { return types[static_cast<std::size_t>(layer)] != "dense"; });
}

constexpr std::array kExperts{
    Family{"deepseek_v2", describe_deepseek_v2},
    Family{"deepseek_v3", describe_deepseek_v3},
    Family{"dots1", describe_dots1},
    Family{"ernie4_5_moe", describe_ernie_moe},
    Family{"glm4_moe", describe_glm4_moe},
    Family{"glm4_moe_lite", describe_glm4_moe_lite},
    Family{"gpt_oss", describe_gpt_oss},
    Family{"hunyuan_v1_moe", describe_hunyuan_moe},
    Family{"kimi_k2", describe_deepseek_v3},
    Family{"minimax_m2", describe_minimax_m2},
    Family{"mixtral", describe_mixtral},
    Family{"olmoe", describe_olmoe},
    Family{"qwen2_moe", describe_qwen2_moe},
    Family{"qwen3_5_moe_text", describe_qwen_hybrid},
    Family{"qwen3_5_text", describe_qwen_hybrid},
    Family{"qwen3_moe", describe_qwen3_moe},
    Family{"qwen3_next", describe_qwen_hybrid},
    Family{"qwen3_vl_moe_text", describe_qwen3_moe},
};

}  // namespace

std::span<const Family> expert_families() { return kExperts; }

}  // namespace oscar
