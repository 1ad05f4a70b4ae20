// SPDX-License-Identifier: MIT
// How each family of models is described, and what descriptions have in common.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/config/config.hpp"
#include "model/config/config_file.hpp"
#include "model/config/rope_config.hpp"

namespace oscar {

inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";
inline constexpr const char* kLinearAttention = "linear_attention";

/// Llama's block: RMS norms, rotary grouped-query attention, gated MLP. The others are told as differences from it.
[[nodiscard]] BlockSpec plain_block(const ConfigFile& file, const ModelConfig& config, const RopeDefaults& rope,
                                    const std::string& layer_type = kFullAttention);
/// The type of every layer; `otherwise` tells it where the file does not.
[[nodiscard]] std::vector<std::string> read_layer_types(const ConfigFile& file, const ModelConfig& config,
                                                        const std::function<std::string(int)>& otherwise);
/// Gives all layers this block, with a window in those that slide. Refuses other types of layers.
void fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block,
                 const std::vector<std::string>& layer_types);
/// Gives all layers this block without a window.
void fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block);

// families_dense.cpp
void describe_qwen2(const ConfigFile& file, ModelConfig& config);
void describe_qwen3(const ConfigFile& file, ModelConfig& config);
void describe_llama(const ConfigFile& file, ModelConfig& config);
void describe_mistral(const ConfigFile& file, ModelConfig& config);
void describe_phi3(const ConfigFile& file, ModelConfig& config);
void describe_glm4(const ConfigFile& file, ModelConfig& config);
void describe_gemma1(const ConfigFile& file, ModelConfig& config);
void describe_gemma(const ConfigFile& file, ModelConfig& config);
void describe_seed_oss(const ConfigFile& file, ModelConfig& config);
void describe_olmo(const ConfigFile& file, ModelConfig& config);
void describe_exaone4(const ConfigFile& file, ModelConfig& config);
void describe_smollm3(const ConfigFile& file, ModelConfig& config);

// families_variants.cpp
void describe_cohere(const ConfigFile& file, ModelConfig& config);
void describe_granite(const ConfigFile& file, ModelConfig& config);
void describe_starcoder2(const ConfigFile& file, ModelConfig& config);
void describe_nemotron(const ConfigFile& file, ModelConfig& config);
void describe_apertus(const ConfigFile& file, ModelConfig& config);
void describe_hunyuan(const ConfigFile& file, ModelConfig& config);
void describe_ernie(const ConfigFile& file, ModelConfig& config);
void describe_ministral3(const ConfigFile& file, ModelConfig& config);
[[nodiscard]] BlockSpec hunyuan_block(const ConfigFile& file, const ModelConfig& config);
[[nodiscard]] BlockSpec ernie_block(const ConfigFile& file, const ModelConfig& config);

// families_gemma4.cpp
void describe_gemma4(const ConfigFile& file, ModelConfig& config);

// families_latent.cpp
void describe_deepseek_v2(const ConfigFile& file, ModelConfig& config);
void describe_deepseek_v3(const ConfigFile& file, ModelConfig& config);
void describe_glm4_moe_lite(const ConfigFile& file, ModelConfig& config);

// families_experts.cpp
/// Sigmoid scores, a bias for the choice, groups, experts for all tokens: DeepSeek-V3 and GLM-4.5 on.
[[nodiscard]] ExpertsSpec grouped_experts(const ConfigFile& file);
void describe_mixtral(const ConfigFile& file, ModelConfig& config);
void describe_qwen2_moe(const ConfigFile& file, ModelConfig& config);
void describe_dots1(const ConfigFile& file, ModelConfig& config);
void describe_qwen3_moe(const ConfigFile& file, ModelConfig& config);
void describe_glm4_moe(const ConfigFile& file, ModelConfig& config);
void describe_gpt_oss(const ConfigFile& file, ModelConfig& config);
void describe_minimax_m2(const ConfigFile& file, ModelConfig& config);
void describe_qwen_hybrid(const ConfigFile& file, ModelConfig& config);
void describe_olmoe(const ConfigFile& file, ModelConfig& config);
void describe_qwen3_vl_moe(const ConfigFile& file, ModelConfig& config);
void describe_hunyuan_moe(const ConfigFile& file, ModelConfig& config);
void describe_ernie_moe(const ConfigFile& file, ModelConfig& config);

}  // namespace oscar
