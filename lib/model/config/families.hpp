// SPDX-License-Identifier: MIT
// How each family of models is described: how config.json becomes blocks, as differences from Llama's block.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/config/config_file.hpp"

namespace oscar {

/// Adds the members that the file leaves out, as transformers' class of this type does. Throws DataError that lists the
/// supported types if this is none.
void check_architecture(ConfigFile& file, const std::string& model_type);
/// Fills config.blocks and whatever else depends on the architecture; config has the common numbers already. Throws
/// DataError for a setting that is not supported.
void describe_architecture(const ConfigFile& file, ModelConfig& config);

struct Family {
  const char* model_type;
  void (*describe)(const ConfigFile&, ModelConfig&);
};
/// Families without experts, or with experts beside a dense MLP (families_dense.cpp).
[[nodiscard]] std::span<const Family> dense_families();
/// Mixtures of experts, and models that mix kinds of attention (families_experts.cpp).
[[nodiscard]] std::span<const Family> expert_families();

inline constexpr const char* kFullAttention = "full_attention";
inline constexpr const char* kSlidingAttention = "sliding_attention";
inline constexpr const char* kLinearAttention = "linear_attention";

/// Tells the type of each layer.
using LayerTypes = std::function<std::string(int layer)>;
[[nodiscard]] LayerTypes all_layers(const char* type);
/// Every layer whose number, counted from 1, is a multiple of `period` sees all; the others are of the type `between`.
[[nodiscard]] LayerTypes full_every(int period, const char* between);
/// All layers slide if there is a window.
[[nodiscard]] LayerTypes all_windowed(const ConfigFile& file);

/// Llama's block: RMS norms, rotary grouped-query attention, gated MLP; biases as "attention_bias" (of q, k, v and
/// outputs), "mlp_bias" and "use_bias" (of all) say.
[[nodiscard]] BlockSpec plain_block(const ConfigFile& file, const ModelConfig& config,
                                    const std::string& layer_type = kFullAttention);
/// The type of every layer; `otherwise` tells it where the file does not, or the class has no such member.
[[nodiscard]] std::vector<std::string> read_layer_types(const ConfigFile& file, const ModelConfig& config,
                                                        const LayerTypes& otherwise);
/// Gives all layers this block, with a window in those that slide. Refuses other types of layers.
void fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block,
                 const std::vector<std::string>& types);
/// The same with the types that read_layer_types() gives, which it returns.
std::vector<std::string> fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block,
                                     const LayerTypes& otherwise = all_layers(kFullAttention));
/// Layers that see all have no positions.
void drop_positions(ModelConfig& config, const std::vector<std::string>& types);

// Families that others differ from.
void fill_qwen(const ConfigFile& file, ModelConfig& config, const BlockSpec& block);
void describe_qwen2(const ConfigFile& file, ModelConfig& config);
void describe_qwen3(const ConfigFile& file, ModelConfig& config);
void describe_hunyuan(const ConfigFile& file, ModelConfig& config);
void describe_ernie(const ConfigFile& file, ModelConfig& config);

}  // namespace oscar
