// SPDX-License-Identifier: MIT
#include "model/config/architectures.hpp"

#include <algorithm>
#include <array>

#include "model/config/families.hpp"

namespace oscar {
namespace {

struct Architecture {
  const char* model_type;
  void (*describe)(const ConfigFile&, ModelConfig&);
  /// What published files of this type leave out.
  const char* defaults = "{}";
};

constexpr const char* kGemma3Defaults = R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "vocab_size": 262208, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 4096})";
constexpr const char* kGemma4Defaults = R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
  "vocab_size": 262144, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "sliding_window": 512})";
constexpr const char* kGemma4UnifiedDefaults =
    R"({"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262144,
  "max_position_embeddings": 262144, "rms_norm_eps": 1e-6, "sliding_window": 1024, "hidden_size_per_layer_input": 0})";
constexpr const char* kGlm4LiteDefaults = R"({"routed_scaling_factor": 1.8})";
constexpr std::array kArchitectures{
    Architecture{"apertus", describe_apertus},
    Architecture{"cohere", describe_cohere},
    Architecture{"cohere2", describe_cohere},
    Architecture{"deepseek_v2", describe_deepseek_v2},
    Architecture{"deepseek_v3", describe_deepseek_v3},
    Architecture{"dots1", describe_dots1},
    Architecture{"ernie4_5", describe_ernie},
    Architecture{"ernie4_5_moe", describe_ernie_moe},
    Architecture{"exaone4", describe_exaone4},
    Architecture{"gemma", describe_gemma1},
    Architecture{"gemma2", describe_gemma},
    Architecture{"gemma3", describe_gemma, kGemma3Defaults},
    Architecture{"gemma3_text", describe_gemma, kGemma3Defaults},
    Architecture{"gemma4_text", describe_gemma4, kGemma4Defaults},
    Architecture{"gemma4_unified_text", describe_gemma4, kGemma4UnifiedDefaults},
    Architecture{"glm", describe_glm4},
    Architecture{"glm4", describe_glm4},
    Architecture{"glm4_moe", describe_glm4_moe},
    Architecture{"glm4_moe_lite", describe_glm4_moe_lite, kGlm4LiteDefaults},
    Architecture{"gpt_oss", describe_gpt_oss},
    Architecture{"granite", describe_granite},
    Architecture{"granitemoehybrid", describe_granite},
    Architecture{"hunyuan_v1_dense", describe_hunyuan},
    Architecture{"hunyuan_v1_moe", describe_hunyuan_moe},
    Architecture{"kimi_k2", describe_deepseek_v3},
    Architecture{"llama", describe_llama},
    Architecture{"minimax_m2", describe_minimax_m2},
    Architecture{"ministral3", describe_ministral3},
    Architecture{"mistral", describe_mistral},
    Architecture{"mixtral", describe_mixtral},
    Architecture{"nemotron", describe_nemotron},
    Architecture{"olmo2", describe_olmo},
    Architecture{"olmo3", describe_olmo},
    Architecture{"olmoe", describe_olmoe},
    Architecture{"phi3", describe_phi3},
    Architecture{"qwen2", describe_qwen2},
    Architecture{"qwen2_5_vl", describe_qwen2},
    Architecture{"qwen2_5_vl_text", describe_qwen2},
    Architecture{"qwen2_moe", describe_qwen2_moe},
    Architecture{"qwen3", describe_qwen3},
    Architecture{"qwen3_5_moe_text", describe_qwen_hybrid},
    Architecture{"qwen3_5_text", describe_qwen_hybrid},
    Architecture{"qwen3_moe", describe_qwen3_moe},
    Architecture{"qwen3_next", describe_qwen_hybrid},
    Architecture{"qwen3_vl_moe_text", describe_qwen3_vl_moe},
    Architecture{"qwen3_vl_text", describe_qwen3},
    Architecture{"seed_oss", describe_seed_oss},
    Architecture{"smollm3", describe_smollm3},
    Architecture{"starcoder2", describe_starcoder2},
};

const Architecture* find_architecture(const std::string& model_type) {
  const auto* const found = std::find_if(kArchitectures.begin(), kArchitectures.end(),
                                         [&](const Architecture& entry) { return model_type == entry.model_type; });
  return found == kArchitectures.end() ? nullptr : found;
}

}  // namespace

void check_architecture(ConfigFile& file, const std::string& model_type) {
  if (const Architecture* found = find_architecture(model_type)) return file.use_defaults(Json::parse(found->defaults));
  if (model_type.empty()) file.refuse("\"model_type\", the name of the architecture, is missing");
  std::string names;
  for (const Architecture& entry : kArchitectures) names += (names.empty() ? "" : ", ") + std::string(entry.model_type);
  file.refuse("the architecture \"" + model_type + "\" is not supported",
              "use a checkpoint of one of: " + names +
                  "; or dump q, k and v where the model runs (layer_<id>/{q,k,v,seq_lens}/<n>.pt) and give --dump");
}

void describe_architecture(const ConfigFile& file, ModelConfig& config) {
  find_architecture(config.model_type)->describe(file, config);
  if (config.cache_layers().empty()) file.unsupported("a model without softmax attention");
}

}  // namespace oscar
