// SPDX-License-Identifier: MIT
// The architecture numbers of a Hugging Face checkpoint, from its config.json. Supported layout: Qwen3 (dense).
#pragma once

#include <filesystem>
#include <string>

#include "model/identity.hpp"

namespace oscar {

struct ModelConfig {
  std::string model_type;
  std::string torch_dtype;  // "bfloat16" …; the type dumps are written in
  int hidden_size = 0;
  int num_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int intermediate_size = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;
  double rope_theta = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  ModelIdentity identity;
};

/// Reads `<model>/config.json`. Throws DataError: missing or malformed file or member, an architecture that is not
/// supported (the message lists those that are), a setting of it that is not (attention_bias, rope_scaling, sliding
/// windows …).
[[nodiscard]] ModelConfig read_model_config(const std::filesystem::path& model);

}  // namespace oscar
