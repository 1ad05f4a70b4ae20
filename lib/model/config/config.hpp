// SPDX-License-Identifier: MIT
// A Hugging Face checkpoint's config.json, or what a GGUF file says in its place, as numbers and blocks.
// architectures.hpp lists what is supported.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "model/config/block.hpp"
#include "model/config/identity.hpp"

namespace oscar {

struct ModelConfig {
  std::string model_type;
  std::string torch_dtype;  // "bfloat16" …; the type dumps are written in
  int hidden_size = 0;
  int num_layers = 0;
  // Of the layers that keep a cache.
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;
  double rms_norm_eps = 0;
  bool norm_plus_one = false;  // norms multiply with 1 + weight
  bool layer_norm = false;     // norms subtract the mean first
  bool norm_bias = false;      // and add a bias
  double embedding_scale = 1;  // of token embeddings
  double logit_scale = 1;
  double logit_soft_cap = 0;  // 0 = none
  int layer_input_vocab = 0;  // of the embeddings that tokens have for each layer (BlockSpec::input_dim)
  bool tie_word_embeddings = false;
  bool fp8 = false;               // matrices may be float8 with scales beside them
  std::vector<BlockSpec> blocks;  // num_layers
  ModelIdentity identity;

  /// Why the attention of its layers cannot be replaced by that of a set (AttentionHook); empty if it can.
  [[nodiscard]] std::string why_irreplaceable() const;
  /// The layers whose cache grows with the whole text; if all are limited to a window, those.
  [[nodiscard]] std::vector<int> cache_layers() const;
  /// The layer whose keys and values `layer` reads: itself, unless it shares those of an earlier one.
  [[nodiscard]] int cache_of(int layer) const {
    const MixerSpec& mixer = blocks.at(static_cast<std::size_t>(layer)).mixer;
    return mixer.own_kv ? layer : mixer.kv_layer;
  }
  /// The layers whose keys and values later layers read, too.
  [[nodiscard]] std::vector<int> shared_layers() const {
    std::vector<int> shared;
    for (std::size_t layer = 0; layer < blocks.size(); ++layer) {
      const int source = blocks[layer].mixer.kv_layer;
      if (source == static_cast<int>(layer)) shared.push_back(source);
    }
    return shared;
  }
};

/// Reads `<model>/config.json`, or the metadata of a GGUF file. Throws DataError: missing or malformed file or member,
/// an architecture that is not supported (the message lists those that are), a setting of it that is not.
[[nodiscard]] ModelConfig read_model_config(const std::filesystem::path& model);

}  // namespace oscar
