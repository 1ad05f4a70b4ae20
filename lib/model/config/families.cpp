// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.hpp"
#include "model/config/config_file.hpp"

namespace oscar {
namespace {

Activation read_activation(const ConfigFile& file) {
  using enum Activation;
  static const std::map<std::string, Activation> names{
      {"silu", kSilu},         {"swish", kSilu}, {"gelu", kGelu},         {"gelu_pytorch_tanh", kGeluTanh},
      {"gelu_new", kGeluTanh}, {"relu", kRelu},  {"relu2", kSquaredRelu}, {"xielu", kXielu}};
  const char* member = file.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const auto found = names.find(file.text(member, ""));
  const std::string family = file.text("model_type", "");
  if (found == names.end() || (found->second == kXielu && family != "apertus")) file.unsupported_member(member);
  // The first files of Gemma name another activation than they mean.
  return found->second == kGelu && family == "gemma" ? kGeluTanh : found->second;
}

/// A window that holds the whole context is none.
int read_window(const ConfigFile& file) {
  if (!file.has("sliding_window")) file.unsupported("\"layer_types\" with windows and without a \"sliding_window\"");
  const int window = file.dimension("sliding_window");
  return window >= file.dimension("max_position_embeddings") ? 0 : window;
}

/// Null: there is no such family.
const Family* find_family(const std::string& model_type) {
  for (const auto& families : {dense_families(), expert_families()}) {
    const auto found = std::ranges::find(families, model_type, &Family::model_type);
    if (found != families.end()) return &*found;
  }
  return nullptr;
}

}  // namespace

BlockSpec plain_block(const ConfigFile& file, const ModelConfig& config, const std::string& layer_type) {
  BlockSpec block;
  block.mixer.num_heads = config.num_attention_heads;
  block.mixer.num_kv_heads = config.num_key_value_heads;
  block.mixer.head_dim = block.mixer.value_dim = config.head_dim;
  block.mixer.softmax_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  block.mixer.rope = read_rope(file, layer_type, config.head_dim);
  const bool all = file.flag("use_bias");
  block.mixer.qkv_bias = block.mixer.output_bias = file.flag("attention_bias") || all;
  block.mlp.bias = file.flag("mlp_bias") || all;
  block.mlp.activation = read_activation(file);
  if (file.has("intermediate_size")) block.mlp.intermediate = file.dimension("intermediate_size");
  return block;
}

LayerTypes all_layers(const char* type) {
  return [type](int) { return type; };
}

LayerTypes full_every(int period, const char* between) {
  return [=](int layer) { return (layer + 1) % period == 0 ? kFullAttention : between; };
}

LayerTypes all_windowed(const ConfigFile& file) {
  return all_layers(file.has("sliding_window") ? kSlidingAttention : kFullAttention);
}

std::vector<std::string> read_layer_types(const ConfigFile& file, const ModelConfig& config,
                                          const LayerTypes& otherwise) {
  std::vector<std::string> types;
  if (!file.has("layer_types")) {
    for (int layer = 0; layer < config.num_layers; ++layer) types.push_back(otherwise(layer));
    return types;
  }
  const Json& list = file.at("layer_types");
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
                 const std::vector<std::string>& types) {
  config.blocks.assign(static_cast<std::size_t>(config.num_layers), block);
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == kLinearAttention) file.unsupported("the layer type \"linear_attention\" in this model");
    if (types[layer] == kSlidingAttention) config.blocks[layer].mixer.window = read_window(file);
  }
}

std::vector<std::string> fill_blocks(const ConfigFile& file, ModelConfig& config, const BlockSpec& block,
                                     const LayerTypes& otherwise) {
  std::vector<std::string> types = read_layer_types(file, config, otherwise);
  fill_blocks(file, config, block, types);
  return types;
}

void drop_positions(ModelConfig& config, const std::vector<std::string>& types) {
  for (std::size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == kFullAttention) config.blocks[layer].mixer.rope.dim = 0;
  }
}

void check_architecture(ConfigFile& file, const std::string& model_type) {
  if (find_family(model_type) != nullptr) return file.use_class(model_type);
  if (model_type.empty()) file.refuse("\"model_type\", the name of the architecture, is missing");
  std::vector<std::string> types;
  for (const auto& families : {dense_families(), expert_families()}) {
    for (const Family& family : families) types.emplace_back(family.model_type);
  }
  std::ranges::sort(types);
  file.refuse("the architecture \"" + model_type + "\" is not supported",
              "use a checkpoint of one of: " + joined(types) +
                  "; or dump q, k and v where the model runs (layer_<id>/{q,k,v,seq_lens}/<n>.pt) and give --dump");
}

void describe_architecture(const ConfigFile& file, ModelConfig& config) {
  find_family(config.model_type)->describe(file, config);
  if (config.cache_layers().empty()) file.unsupported("a model without softmax attention");
  std::int64_t experts_of_all = 0;
  for (const BlockSpec& block : config.blocks) {
    const ExpertsSpec& experts = block.mlp.experts;
    if (experts.count == 0) continue;
    experts_of_all += experts.count;
    if (experts_of_all > kMostModelExperts) {
      file.unsupported(plural(experts.count, "expert") + " a layer, in so many layers,");
    }
    if (experts.top_groups > experts.groups || experts.top_k > experts.count / experts.groups * experts.top_groups) {
      const bool grouped = experts.groups > 1 || experts.top_groups > 1;
      file.refuse(std::string(grouped ? "n_group, topk_group and num_experts_per_tok" : "num_experts_per_tok") +
                  " ask for more than there is: " + plural(experts.top_k, "expert") + " a token in " +
                  plural(experts.top_groups, "group") + ", of " + std::to_string(experts.count) + " in " +
                  std::to_string(experts.groups));
    }
  }
}

}  // namespace oscar
