// SPDX-License-Identifier: MIT
#include "model/config/config.hpp"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/places.hpp"
#include "base/sha256.hpp"
#include "model/config/config_file.hpp"
#include "model/gguf/gguf_model.hpp"

namespace oscar {
namespace {

/// The config.json of a checkpoint, or what a GGUF file says in its place, and what names the model.
struct Described {
  ConfigFile file;
  ModelIdentity identity;
  std::vector<std::string> biases;  // of a GGUF file, whose tensors alone tell of them
};

Described describe_gguf(const fs::path& path) {
  const GgufModel model(path);
  ModelIdentity identity;
  identity.id = gguf_model_name(path);
  ConfigFile file(gguf_config(model), model.where());
  for (const std::string& text : gguf_notices(model)) file.notice(text);
  std::vector<std::string> biases;
  for (const auto& [tensor, place] : model.tensors()) {
    const std::optional<GgufWeightName> known = gguf_weight_name(model, tensor);
    if (known && known->name.ends_with(".bias")) biases.push_back(known->name);
  }
  return {file, identity, biases};
}

/// The names come from the address on the Hugging Face Hub or the path inside its cache
/// (models--<org>--<name>/snapshots/<commit>), which give the same, or from the folder's name.
Described describe_folder(const fs::path& model) {
  if (!is_remote(model) && !fs::is_directory(model)) {
    throw DataError(
        "there is no model folder", model.string(),
        "name a folder with config.json and *.safetensors, a .gguf file, or a model on the Hugging Face Hub: "
        "hf://ORG/MODEL");
  }
  const fs::path folder = is_remote(model) ? model : fs::weakly_canonical(model);
  ModelIdentity identity;
  const std::string cached = folder.parent_path().parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  if (const std::optional<Publication> published = publication_of(folder)) {
    identity.id = published->repository;
    identity.revision = published->revision;
  } else if (folder.parent_path().filename() == "snapshots" && cached.starts_with(kPrefix)) {
    identity.id = cached.substr(kPrefix.size());
    if (const std::size_t at = identity.id.find("--"); at != std::string::npos) identity.id.replace(at, 2, "/");
    identity.revision = folder.filename().string();
  } else {
    identity.id = folder.filename().string();
  }
  return {ConfigFile(model / "config.json"), identity, {}};
}

/// Heads are those of the layers that keep a cache.
void settle_sizes(ModelConfig& config) {
  const MixerSpec& mixer = config.block(config.cache_layers().front()).mixer;
  ModelIdentity& identity = config.identity;
  identity.num_layers = config.num_layers;
  identity.num_attention_heads = config.num_attention_heads = mixer.num_heads;
  identity.num_key_value_heads = config.num_key_value_heads = mixer.num_kv_heads;
  identity.head_dim = config.head_dim = mixer.head_dim;
  if (mixer.value_dim != mixer.head_dim) identity.value_dim = mixer.value_dim;
  const auto is_plain = [&](int layer) {
    const MixerSpec& own = config.block(layer).mixer;
    return own.rope.plain(config.head_dim) && own.rope.theta == mixer.rope.theta && own.rope.irregular.empty() &&
           !own.norm_after_rope;
  };
  identity.rope_theta = std::ranges::all_of(config.cache_layers(), is_plain) ? mixer.rope.theta : 0;
  if (config.cache_layers().size() < config.blocks.size()) identity.cache_layers = config.cache_layers();
}

std::string text_or_nothing(const Json& object, const char* name) {
  const Json value = object.is_object() ? object.value(name, Json()) : Json();
  return value.is_string() ? value.get<std::string>() : "";
}

void check_quantization(const ConfigFile& file, ModelConfig& config) {
  if (!file.has("quantization_config")) return;
  const Json& member = file.at("quantization_config");
  const std::string method = text_or_nothing(member, "quant_method");
  const bool float8 = method == "compressed-tensors" && text_or_nothing(member, "format") == "float-quantized";
  if (method == "fp8" || method == "fbgemm_fp8" || float8) {
    config.fp8 = true;
    const Json blocks = member.value("weight_block_size", Json());
    if (!blocks.is_null() && blocks != Json{128, 128}) file.unsupported("\"weight_block_size\": " + blocks.dump());
    if (!member.value("transform_config", Json()).empty()) file.unsupported("quantization_config.transform_config");
  } else if (method != "mxfp4") {
    file.refuse("the checkpoint is quantized with \"" + method + "\", which is not supported",
                "use the checkpoint that it was made from, or one in float8 (\"fp8\") or mxfp4");
  }
}

void read_sizes(const ConfigFile& file, ModelConfig& config) {
  config.hidden_size = file.dimension("hidden_size");
  config.num_layers = file.dimension("num_hidden_layers");
  if (config.num_layers > kMostModelLayers) file.unsupported_member("num_hidden_layers");
  config.num_attention_heads = file.dimension("num_attention_heads");
  config.num_key_value_heads = file.dimension("num_key_value_heads", config.num_attention_heads);
  const char* own = file.has("qk_rope_head_dim") ? "qk_rope_head_dim" : "head_dim";
  if (!file.has(own) && config.hidden_size % config.num_attention_heads != 0) {
    file.refuse("hidden_size is not a multiple of num_attention_heads and there is no head_dim");
  }
  config.head_dim = file.dimension(own, config.hidden_size / config.num_attention_heads);
  config.vocab_size = file.dimension("vocab_size");
  config.max_position_embeddings = file.dimension("max_position_embeddings");
  for (const char* name : {"rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps"}) {
    if (file.has(name)) config.rms_norm_eps = file.positive(name);
  }
  config.tie_word_embeddings = file.flag("tie_word_embeddings");
  config.own_head = !config.tie_word_embeddings;
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    file.refuse("num_attention_heads (" + std::to_string(config.num_attention_heads) +
                ") is not a multiple of num_key_value_heads (" + std::to_string(config.num_key_value_heads) + ")");
  }
}

/// Six digits, which float32 keeps, so that a number and its float32 are told alike.
template <class... Values>
std::string line(const Values&... values) {
  const std::array<double, sizeof...(values)> numbers{static_cast<double>(values)...};
  return fmt::format("{:.6g}\n", fmt::join(numbers, " "));
}

/// The frequencies stand for the rule that they are made by: in GGUF, Llama 3's are factors of plain ones. These are
/// rounded: hence four digits.
std::string text_of(const RopeSpec& rope, double query_growth) {
  const auto turns = [&](std::int64_t end) {
    return fmt::format("{:.4g}\n", fmt::join(inverse_frequencies(rope, end), " "));
  };
  const std::string near = turns(0), far = turns(std::numeric_limits<std::int64_t>::max());
  const bool by_length = near != far || query_growth > 0;
  return line(rope.dim, rope.theta, rope.interleaved, rope.split_pairs, rope.attention_factor, rope.irregular.empty()) +
         near + (by_length ? far + line(rope.original_context, query_growth) : "");
}

std::string text_of(const MixerSpec& m) {
  return line(m.kind, m.num_heads, m.num_kv_heads, m.head_dim, m.value_dim, m.window, m.softmax_scale, m.soft_cap,
              m.sinks, m.output_gate, m.head_norm, m.norm_after_rope, m.value_norm, m.value_is_key, m.kv_layer,
              m.own_kv, m.latent_dim, m.query_latent_dim, m.nope_dim, m.head_value_dim, m.conv_width) +
         text_of(m.rope, m.query_growth);
}

std::string text_of(const MlpSpec& mlp) {
  const ExpertsSpec& e = mlp.experts;
  return line(mlp.activation, mlp.gate.empty(), mlp.clamp, mlp.alpha, e.count > 0 ? e.intermediate : mlp.intermediate) +
         line(e.count, e.top_k, e.router, e.normalize, e.scale, e.groups, e.top_groups, e.group_votes,
              e.choice_bias.empty(), e.shared_intermediate, e.shared_gate.empty(), e.router_scale.empty());
}

}  // namespace

std::vector<int> ModelConfig::cache_layers() const {
  std::vector<int> growing, limited;
  for (int layer = 0; layer < num_layers; ++layer) {
    if (block(layer).has_cache()) (block(layer).mixer.window == 0 ? growing : limited).push_back(layer);
  }
  return growing.empty() ? limited : growing;
}

std::string ModelConfig::why_irreplaceable() const {
  for (const int layer : cache_layers()) {
    if (block(layer).mixer.kind == MixerKind::kLatentAttention) {
      return "latent attention, whose keys are wider than its values,";
    }
  }
  return "";
}

ModelConfig read_model_config(const fs::path& model) {
  auto [file, identity, biases] = is_gguf(model) ? describe_gguf(model) : describe_folder(model);
  ModelConfig config;
  config.model_type = file.text("model_type", "");
  is_gguf(model) ? file.use_members(file.all()) : check_architecture(file, config.model_type);
  config.torch_dtype = file.text("dtype", file.text("torch_dtype", "float32"));
  if (file.text("torch_dtype", config.torch_dtype) != config.torch_dtype) {
    file.notice("\"dtype\" is taken, as transformers does; \"torch_dtype\", which stands beside it, differs");
  }
  if (const std::string& type = config.torch_dtype; type != "float32" && type != "float16" && type != "bfloat16") {
    file.refuse("\"torch_dtype\": \"" + config.torch_dtype + "\" is not supported",
                "give float32, float16 or bfloat16");
  }
  read_sizes(file, config);
  check_quantization(file, config);
  describe_architecture(file, config);
  for (const std::string& name : biases) {
    const std::size_t layer = std::string_view("model.layers.").size(), part = name.find('.', layer) + 1;
    const auto number = static_cast<std::size_t>(std::stoi(name.substr(layer)));
    if (number < config.blocks.size()) config.blocks[number].biased.insert(name.substr(part, name.rfind('.') - part));
  }
  config.notices = file.check_members();
  config.identity = identity;
  settle_sizes(config);
  config.identity.config_sha256 = config_sha256(config);
  return config;
}

std::string config_sha256(const ModelConfig& config) {
  std::string text = line(config.hidden_size, config.rms_norm_eps, config.norm_plus_one, config.layer_norm,
                          config.norm_bias, config.embedding_scale, config.logit_scale, config.logit_soft_cap);
  for (const BlockSpec& block : config.blocks) {
    const bool biased = block.mixer.qkv_bias || block.mixer.output_bias || block.mlp.bias || !block.biased.empty();
    text +=
        text_of(block.mixer) + text_of(block.mlp) +
        line(block.mixer_norm.empty(), block.mixer_out_norm.empty(), block.mlp_norm.empty(), block.mlp_out_norm.empty(),
             block.scalar.empty(), block.parallel, block.residual_scale, block.input_dim, block.input_index, biased);
  }
  return sha256_hex(text);
}

}  // namespace oscar
