// SPDX-License-Identifier: MIT
#include "model/config.hpp"

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"

namespace oscar {
namespace {

constexpr int kMaxDimension = 1 << 24;  // beyond any model; keeps products of two dimensions inside 64 bits

/// config.json with the file's name for errors.
class ConfigFile {
 public:
  explicit ConfigFile(const fs::path& path) : path_(path.string()), json_(read_json(path)) {
    if (!json_.is_object()) refuse("is not a JSON object");
  }

  [[nodiscard]] const Json& json() const { return json_; }

  [[noreturn]] void refuse(const std::string& what, const std::string& remedy = "fetch the checkpoint again") const {
    throw DataError(what, path_, remedy);
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    refuse(what + " is not supported", "use a dense Qwen3 checkpoint without it");
  }

  [[nodiscard]] int dimension(const char* name) const {
    const auto member = json_.find(name);
    if (member == json_.end()) refuse(std::string("has no member \"") + name + "\"");
    if (!member->is_number_integer() || *member < 1 || *member > kMaxDimension) {
      refuse(std::string("member \"") + name + "\" must be a positive whole number, found " + member->dump());
    }
    return member->get<int>();
  }

  [[nodiscard]] double positive(const Json& parent, const char* name) const {
    const auto member = parent.find(name);
    if (member == parent.end() || !member->is_number() || !(member->get<double>() > 0)) {
      refuse(std::string("member \"") + name + "\" must be a positive number");
    }
    return member->get<double>();
  }

  [[nodiscard]] bool flag(const char* name) const {
    const auto member = json_.find(name);
    if (member == json_.end() || member->is_null()) return false;
    if (!member->is_boolean()) refuse(std::string("member \"") + name + "\" must be true or false");
    return member->get<bool>();
  }

  [[nodiscard]] std::string text(const char* name, const std::string& otherwise) const {
    const auto member = json_.find(name);
    return member != json_.end() && member->is_string() ? member->get<std::string>() : otherwise;
  }

  [[nodiscard]] bool has(const char* name) const {
    const auto member = json_.find(name);
    return member != json_.end() && !member->is_null();
  }

 private:
  std::string path_;
  Json json_;
};

void check_architecture(const ConfigFile& file) {
  const std::string type = file.text("model_type", "");
  if (type != "qwen3") {
    file.refuse("the architecture \"" + type + "\" is not supported", "use a checkpoint of one of: qwen3 (dense)");
  }
  if (file.flag("attention_bias")) file.unsupported("\"attention_bias\": true");
  if (file.flag("use_sliding_window")) file.unsupported("\"use_sliding_window\": true");
  if (file.has("quantization_config")) file.unsupported("a quantized checkpoint (\"quantization_config\")");
  if (const std::string act = file.text("hidden_act", "silu"); act != "silu") {
    file.unsupported("\"hidden_act\": \"" + act + "\"");
  }
  for (const Json& layer : file.json().value("layer_types", Json::array())) {
    if (layer != "full_attention") file.unsupported("the layer type " + layer.dump());
  }
}

/// rope_theta at the top, or inside "rope_parameters" as newer checkpoints have it. Scaled variants are refused.
double read_rope_theta(const ConfigFile& file) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (!file.has(name)) continue;
    const Json& rope = file.json().at(name);
    if (!rope.is_object()) file.refuse(std::string("member \"") + name + "\" must be an object");
    const Json type = rope.value("rope_type", rope.value("type", Json("default")));
    if (type != "default") file.unsupported("the RoPE variant " + type.dump());
    if (rope.contains("rope_theta")) return file.positive(rope, "rope_theta");
  }
  return file.positive(file.json(), "rope_theta");
}

/// From the path inside a Hugging Face cache (models--<org>--<name>/snapshots/<commit>), else from the folder's name.
ModelIdentity identify(const fs::path& model, const ModelConfig& config) {
  const fs::path folder = fs::weakly_canonical(model);
  ModelIdentity identity;
  const std::string cached = folder.parent_path().parent_path().filename().string();
  constexpr std::string_view kPrefix = "models--";
  if (folder.parent_path().filename() == "snapshots" && cached.starts_with(kPrefix)) {
    identity.id = cached.substr(kPrefix.size());
    if (const std::size_t at = identity.id.find("--"); at != std::string::npos) identity.id.replace(at, 2, "/");
    identity.revision = folder.filename().string();
  } else {
    identity.id = folder.filename().string();
  }
  identity.config_sha256 = sha256_file(model / "config.json");
  identity.num_layers = config.num_layers;
  identity.num_attention_heads = config.num_attention_heads;
  identity.num_key_value_heads = config.num_key_value_heads;
  identity.head_dim = config.head_dim;
  identity.rope_theta = config.rope_theta;
  return identity;
}

}  // namespace

ModelConfig read_model_config(const fs::path& model) {
  if (!fs::is_directory(model)) {
    throw DataError("there is no model folder", model.string(), "name a folder with config.json and *.safetensors");
  }
  const ConfigFile file(model / "config.json");
  check_architecture(file);
  ModelConfig config;
  config.model_type = file.text("model_type", "");
  config.torch_dtype = file.text("torch_dtype", file.text("dtype", "float32"));
  config.hidden_size = file.dimension("hidden_size");
  config.num_layers = file.dimension("num_hidden_layers");
  config.num_attention_heads = file.dimension("num_attention_heads");
  config.num_key_value_heads = file.dimension("num_key_value_heads");
  config.head_dim = file.dimension("head_dim");
  config.intermediate_size = file.dimension("intermediate_size");
  config.vocab_size = file.dimension("vocab_size");
  config.max_position_embeddings = file.dimension("max_position_embeddings");
  config.rope_theta = read_rope_theta(file);
  config.rms_norm_eps = file.positive(file.json(), "rms_norm_eps");
  config.tie_word_embeddings = file.flag("tie_word_embeddings");
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    file.refuse("num_attention_heads (" + std::to_string(config.num_attention_heads) +
                ") is not a multiple of num_key_value_heads (" + std::to_string(config.num_key_value_heads) + ")");
  }
  if (config.head_dim % 2 != 0) file.refuse("head_dim must be even for RoPE");
  constexpr std::array<const char*, 3> kTypes{"float32", "float16", "bfloat16"};
  if (std::find(kTypes.begin(), kTypes.end(), config.torch_dtype) == kTypes.end()) {
    file.unsupported("\"torch_dtype\": \"" + config.torch_dtype + "\"");
  }
  config.identity = identify(model, config);
  return config;
}

}  // namespace oscar
