// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>

#include "model/config/families.hpp"

namespace oscar {

/// Multi-head latent attention; the cache is the latent and one rotated key.
void describe_deepseek_v3(const ConfigFile& file, ModelConfig& config) {
  config.head_dim = file.dimension("qk_rope_head_dim");
  BlockSpec block = plain_block(file, config, {10000});
  MixerSpec& m = block.mixer;
  m.kind = MixerKind::kLatentAttention;
  m.latent_dim = file.dimension("kv_lora_rank");
  m.query_latent_dim = file.dimension("q_lora_rank", 0);
  m.nope_dim = file.dimension("qk_nope_head_dim");
  m.head_value_dim = file.dimension("v_head_dim");
  m.latent_bias = file.flag("attention_bias");
  m.rope.interleaved = m.rope.split_pairs = file.flag("rope_interleave", true);
  m.num_kv_heads = 1;
  m.head_dim = m.latent_dim + m.rope.dim;
  m.value_dim = m.latent_dim;
  m.softmax_scale = m.rope.sharpening / std::sqrt(static_cast<double>(m.nope_dim + m.rope.dim));
  block.mlp.experts = grouped_experts(file);
  fill_blocks(file, config, block);
  const int dense = file.dimension_or_zero("first_k_dense_replace", 3);
  for (int layer = 0; layer < std::min(dense, config.num_layers); ++layer) {
    config.blocks[static_cast<std::size_t>(layer)].mlp.experts = {};
  }
}

/// Softmax scores without a bias; the best expert of a group speaks for it.
void describe_deepseek_v2(const ConfigFile& file, ModelConfig& config) {
  describe_deepseek_v3(file, config);
  const bool grouped = file.text("topk_method", "greedy") == "group_limited_greedy";
  const int dense = file.dimension_or_zero("first_k_dense_replace", 0);
  ExpertsSpec experts = grouped_experts(file);
  experts.router = Router::kSoftmax;
  experts.choice_bias = "";
  experts.normalize = false;
  experts.group_votes = 1;
  if (!grouped) experts.groups = experts.top_groups = 1;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    BlockSpec& block = config.blocks[static_cast<std::size_t>(layer)];
    block.mixer.rope.interleaved = true;
    block.mixer.rope.split_pairs = false;
    block.mlp.experts = layer < dense ? ExpertsSpec{} : experts;
  }
}

/// GLM-4.7-Flash: DeepSeek-V3 whose first layer is dense.
void describe_glm4_moe_lite(const ConfigFile& file, ModelConfig& config) {
  describe_deepseek_v3(file, config);
  const Json types = file.json().value("mlp_layer_types", Json::array());
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto own = static_cast<std::size_t>(layer);
    const bool dense = types.size() == config.blocks.size()
                           ? types[own] == "dense"
                           : layer < file.dimension_or_zero("first_k_dense_replace", 1);
    config.blocks[own].mlp.experts = dense ? ExpertsSpec{} : grouped_experts(file);
  }
}

}  // namespace oscar
