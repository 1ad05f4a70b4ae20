// SPDX-License-Identifier: MIT
#include "model/config.hpp"

#include <doctest/doctest.h>

#include "base/files.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// A model folder whose config.json is the sample's with some members replaced; null removes a member.
class ModelFolder {
 public:
  fs::path with(const Json& changes, const std::string& name = "model") const {
    Json config = read_json(test::data("qwen3-2m/config.json"));
    for (const auto& [key, value] : changes.items()) {
      if (value.is_null()) {
        config.erase(key);
      } else {
        config[key] = value;
      }
    }
    write_json(folder_.path() / name / "config.json", config);
    return folder_.path() / name;
  }

 private:
  test::TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("the sample's config is read") {
  const ModelConfig config = read_model_config(test::data("qwen3-2m"));
  CHECK(config.model_type == "qwen3");
  CHECK(config.torch_dtype == "bfloat16");
  CHECK(config.hidden_size == 192);
  CHECK(config.num_layers == 4);
  CHECK(config.num_attention_heads == 3);
  CHECK(config.num_key_value_heads == 1);
  CHECK(config.head_dim == 128);
  CHECK(config.intermediate_size == 512);
  CHECK(config.vocab_size == 2048);
  CHECK(config.max_position_embeddings == 2048);
  CHECK(config.rope_theta == 100000.0);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.tie_word_embeddings);
  CHECK(config.identity.id == "qwen3-2m");
  CHECK(config.identity.config_sha256.size() == 64);
  CHECK(config.identity.head_dim == 128);
  CHECK(config.identity.rope_theta == config.rope_theta);
}

TEST_CASE("a model in a Hugging Face cache knows its name and revision") {
  const ModelFolder folder;
  const ModelConfig config = read_model_config(folder.with({}, "models--Qwen--Qwen3-8B/snapshots/b968826d"));
  CHECK(config.identity.id == "Qwen/Qwen3-8B");
  CHECK(config.identity.revision == "b968826d");
}

TEST_CASE("members that newer checkpoints moved are found") {
  const ModelFolder folder;
  const ModelConfig config =
      read_model_config(folder.with({{"rope_theta", nullptr},
                                     {"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}},
                                     {"torch_dtype", nullptr},
                                     {"dtype", "float16"}}));
  CHECK(config.rope_theta == 5e5);
  CHECK(config.torch_dtype == "float16");
}

TEST_CASE("what is missing, impossible or not supported is named") {
  const ModelFolder folder;
  const auto refused = [&](const Json& changes, const char* reason) {
    CHECK_ERROR(read_model_config(folder.with(changes)), DataError, reason);
  };
  CHECK_ERROR(read_model_config("/nowhere"), DataError, "there is no model folder");
  refused({{"head_dim", nullptr}}, "has no member \"head_dim\"");
  refused({{"head_dim", 127}}, "head_dim must be even");
  refused({{"hidden_size", 0}}, "must be a positive whole number");
  refused({{"hidden_size", "192"}}, "must be a positive whole number");
  refused({{"vocab_size", 1e18}}, "must be a positive whole number");
  refused({{"vocab_size", 4611686018427387904}}, "must be a positive whole number");
  refused({{"num_key_value_heads", 2}}, "not a multiple of num_key_value_heads");
  refused({{"rope_theta", nullptr}}, "\"rope_theta\" must be a positive number");
  refused({{"rms_norm_eps", -1}}, "\"rms_norm_eps\" must be a positive number");
  refused({{"model_type", "llama"}}, "use a checkpoint of one of: qwen3");
  refused({{"model_type", nullptr}}, "use a checkpoint of one of: qwen3");
  refused({{"attention_bias", true}}, "attention_bias");
  refused({{"attention_bias", "no"}}, "must be true or false");
  refused({{"use_sliding_window", true}}, "use_sliding_window");
  refused({{"layer_types", {"full_attention", "sliding_attention"}}}, "sliding_attention");
  refused({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}}, "yarn");
  refused({{"rope_scaling", "yarn"}}, "must be an object");
  refused({{"quantization_config", Json::object()}}, "quantized checkpoint");
  refused({{"hidden_act", "gelu"}}, "gelu");
  refused({{"torch_dtype", "float8_e4m3fn"}}, "float8_e4m3fn");
  const fs::path broken = folder.with({}, "broken");
  write_file(broken / "config.json", "{\"hidden_size\": 19");
  CHECK_ERROR(read_model_config(broken), DataError, "not valid JSON");
  write_file(broken / "config.json", "[]");
  CHECK_ERROR(read_model_config(broken), DataError, "is not a JSON object");
}

}  // namespace oscar
