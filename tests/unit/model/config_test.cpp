// SPDX-License-Identifier: MIT
#include "model/config/config.hpp"

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
  REQUIRE(config.blocks.size() == 4);
  CHECK(config.blocks[3].mlp.intermediate == 512);
  CHECK(config.blocks[3].mixer.head_norm == HeadNorm::kPerHead);
  CHECK(config.cache_layers() == std::vector<int>{0, 1, 2, 3});
  CHECK(config.vocab_size == 2048);
  CHECK(config.max_position_embeddings == 2048);
  CHECK(config.blocks[0].mixer.rope.theta == 100000.0);
  CHECK(config.rms_norm_eps == 1e-6);
  CHECK(config.tie_word_embeddings);
  CHECK(config.identity.id == "qwen3-2m");
  CHECK(config.identity.config_sha256.size() == 64);
  CHECK(config.identity.head_dim == 128);
  CHECK(config.identity.rope_theta == 100000.0);
  CHECK(config.identity.cache_layers.empty());
}

TEST_CASE("a model in a Hugging Face cache knows its name and revision") {
  const ModelFolder folder;
  const ModelConfig config = read_model_config(folder.with({}, "models--Qwen--Qwen3-8B/snapshots/b968826d"));
  CHECK(config.identity.id == "Qwen/Qwen3-8B");
  CHECK(config.identity.revision == "b968826d");
}

TEST_CASE("the hash tells architectures apart, and nothing else") {
  const ModelFolder folder;
  const auto hash = [&](const Json& changes) { return read_model_config(folder.with(changes)).identity.config_sha256; };
  const auto yarn = [](double fast) {
    return Json{{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", fast}}}};
  };
  std::set<std::string> all{hash({})};
  for (const Json& same :
       {Json{{"transformers_version", "5.0"}, {"_name_or_path", "a"}, {"torch_dtype", "float16"}, {"eos_token_id", 7}},
        Json{{"rope_theta", nullptr}, {"rope_parameters", {{"rope_theta", 1e5}, {"rope_type", "default"}}}},
        Json{{"vocab_size", 4096}, {"tie_word_embeddings", false}, {"max_position_embeddings", 4096}},
        Json{{"rms_norm_eps", static_cast<double>(1e-6F)}}}) {
    all.insert(hash(same));
  }
  CHECK(all.size() == 1);
  std::size_t count = 1;
  for (const Json& other :
       {Json{{"rope_theta", 100100.0}}, Json{{"rms_norm_eps", 1e-5}}, Json{{"num_attention_heads", 2}},
        Json{{"head_dim", 64}}, Json{{"intermediate_size", 256}}, Json{{"num_hidden_layers", 3}},
        Json{{"attention_bias", true}}, Json{{"hidden_act", "gelu"}},
        Json{{"use_sliding_window", true}, {"sliding_window", 99}, {"max_window_layers", 2}},
        Json{{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}}, yarn(32), yarn(16),
        Json{{"model_type", "qwen2"}}}) {
    all.insert(hash(other));
    CHECK_MESSAGE(all.size() == ++count, other.dump());
  }
}

TEST_CASE("members that newer checkpoints moved are found") {
  const ModelFolder folder;
  const ModelConfig config =
      read_model_config(folder.with({{"rope_theta", nullptr},
                                     {"rope_parameters", {{"rope_theta", 5e5}, {"rope_type", "default"}}},
                                     {"torch_dtype", nullptr},
                                     {"dtype", "float16"}}));
  CHECK(config.blocks[0].mixer.rope.theta == 5e5);
  CHECK(config.torch_dtype == "float16");
}

TEST_CASE("layers that slide keep no cache that grows, unless all do") {
  const ModelFolder folder;
  const auto sliding = [&](const Json& types, int window) {
    return read_model_config(
        folder.with({{"use_sliding_window", true}, {"sliding_window", window}, {"layer_types", types}}));
  };
  const Json mixed{"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  const ModelConfig config = sliding(mixed, 100);
  CHECK(config.blocks[0].mixer.window == 100);
  CHECK(config.blocks[1].mixer.window == 0);
  CHECK(config.cache_layers() == std::vector<int>{1, 3});
  CHECK(config.identity.cache_layers == std::vector<int>{1, 3});
  CHECK(sliding(Json(4, "sliding_attention"), 100).cache_layers().size() == 4);
  CHECK(sliding(mixed, 2048).cache_layers().size() == 4);  // the window holds the whole context
}

TEST_CASE("Kimi K2 is described as DeepSeek-V3") {
  const ModelFolder folder;
  const auto blocks_of = [&](const char* model_type) {
    return read_model_config(folder.with({{"model_type", model_type},
                                          {"kv_lora_rank", 32},
                                          {"q_lora_rank", 24},
                                          {"qk_rope_head_dim", 8},
                                          {"qk_nope_head_dim", 16},
                                          {"v_head_dim", 12},
                                          {"head_dim", nullptr},
                                          {"n_routed_experts", 8},
                                          {"num_experts_per_tok", 2},
                                          {"moe_intermediate_size", 32},
                                          {"first_k_dense_replace", 1}}))
        .blocks;
  };
  const std::vector<BlockSpec> kimi = blocks_of("kimi_k2"), deepseek = blocks_of("deepseek_v3");
  CHECK(kimi.back().mixer.kind == MixerKind::kLatentAttention);
  CHECK(kimi.back().mixer.head_dim == deepseek.back().mixer.head_dim);
  CHECK(kimi.front().mlp.experts.count == 0);
  CHECK(kimi.back().mlp.experts.count == 8);
  CHECK(kimi.back().mlp.experts.choice_bias == deepseek.back().mlp.experts.choice_bias);
}

TEST_CASE("settings that the other families do not know are refused by name") {
  const ModelFolder folder;
  const auto refused = [&](const Json& changes, const char* reason) {
    CHECK_ERROR(read_model_config(folder.with(changes)), DataError, reason);
  };
  refused({{"model_type", "cohere"}, {"use_qk_norm", true}}, "\"use_qk_norm\": true");
  refused({{"model_type", "granitemoehybrid"}}, "\"num_local_experts\": 8 in this model");
  refused({{"model_type", "granitemoehybrid"}, {"num_local_experts", 0}}, "\"linear_attention\" in this model");
  refused({{"model_type", "olmo2"}, {"hidden_act", "mish"}}, "\"hidden_act\": \"mish\"");
  refused({{"is_causal", false}}, "\"is_causal\": false");
  refused({{"model_type", "gpt_oss"}, {"hidden_act", "gelu"}}, "\"hidden_act\": \"gelu\"");
  refused({{"model_type", "qwen3_moe"}, {"num_experts", 4}, {"num_local_experts", 8}}, "are one thing, and differ");
  refused({{"model_type", "olmoe"}, {"clip_qkv", 8.0}}, "\"clip_qkv\"");
  refused({{"model_type", "mixtral"}, {"num_local_experts", 4}, {"num_experts_per_tok", 5}},
          "num_experts_per_tok ask for more than there is: 5 experts a token in 1 group, of 4 in 1");
}

TEST_CASE("what a file tells twice, or what its class does not know, is told of") {
  const ModelFolder folder;
  const auto notices = [&](const Json& changes) { return read_model_config(folder.with(changes)).notices; };
  const auto told = [&](const Json& changes, const char* what) {
    const std::vector<std::string> all = notices(changes);
    REQUIRE(all.size() == 1);
    CHECK(all[0].find(what) != std::string::npos);
  };
  const Json yarn{{"rope_type", "yarn"}, {"factor", 4}};
  CHECK(notices({}).empty());
  CHECK(notices({{"unheard_of", false}, {"pad_token_id", 3}, {"_name_or_path", "x"}}).empty());
  told({{"unheard_of", 3}}, "none of them for this model_type: \"unheard_of\"");
  told({{"mlp_bias", true}}, "\"mlp_bias\"");
  told({{"rope_scaling", {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 4}}}}, "\"linear\" is taken");
  told({{"rope_parameters", {{"rope_theta", 5e5}}}, {"rope_theta", 2e4}}, "base 500000 is taken");
  told({{"dtype", "float16"}, {"torch_dtype", "bfloat16"}}, "\"dtype\" is taken");
  told({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}, {"strange", 1}}}}, "\"rope_scaling.strange\"");
  const Json both{{"rope_scaling", yarn}, {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 3e4}}}};
  told(both, "\"rope_scaling\" is taken");
  CHECK(read_model_config(folder.with(both)).blocks[0].mixer.rope.type == "yarn");
  Json inner = read_json(test::data("qwen3-2m/config.json"));
  told({{"text_config", inner}, {"hidden_size", 64}}, "\"hidden_size\" is taken from \"text_config\"");
}

TEST_CASE("what is missing, impossible or not supported is named") {
  const ModelFolder folder;
  const auto refused = [&](const Json& changes, const char* reason) {
    CHECK_ERROR(read_model_config(folder.with(changes)), DataError, reason);
  };
  CHECK_ERROR(read_model_config("/nowhere"), DataError, "there is no model folder");
  CHECK_ERROR(read_model_config("/nowhere"), DataError, "hf://ORG/MODEL");
  refused({{"model_type", "llama"}, {"head_dim", nullptr}, {"hidden_size", 191}},
          "hidden_size is not a multiple of num_attention_heads");
  refused({{"head_dim", 127}}, "head_dim must be even");
  refused({{"hidden_size", 0}}, "must be a positive whole number");
  refused({{"hidden_size", "192"}}, "must be a positive whole number");
  refused({{"vocab_size", 1e18}}, "must be a positive whole number");
  refused({{"vocab_size", 4611686018427387904}}, "must be a positive whole number");
  refused({{"num_key_value_heads", 2}}, "not a multiple of num_key_value_heads");
  refused({{"rms_norm_eps", -1}}, "\"rms_norm_eps\" must be a positive number");
  refused({{"model_type", "mamba"}}, "the architecture \"mamba\" is not supported");
  refused({{"model_type", "mamba"}}, "use a checkpoint of one of: apertus, cohere, ");
  refused({{"model_type", "mamba"}}, "give --dump");
  refused({{"model_type", nullptr}}, "the name of the architecture, is missing");
  refused({{"attention_bias", "no"}}, "must be true or false");
  refused({{"layer_types", {"full_attention", "sliding_attention"}}}, "must be a list of 4 names");
  refused({{"layer_types", {"a", "b", "c", "d"}}}, "the layer type \"a\" is not supported");
  refused({{"layer_types", Json(4, "linear_attention")}}, "linear_attention");
  refused({{"layer_types", Json(4, "sliding_attention")}, {"sliding_window", nullptr}}, "sliding_window");
  refused({{"rope_scaling", {{"rope_type", "spiral"}, {"factor", 4}}}}, "the RoPE variant \"spiral\" is not");
  refused({{"rope_scaling", {{"rope_type", "dynamic"}, {"alpha", 1000}}}}, "the RoPE variant \"dynamic\" is not");
  refused({{"rope_scaling", {{"rope_type", "yarn"}}}}, "\"rope_scaling.factor\" must be a positive number");
  refused({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 4}}}}, "low_freq_factor");
  refused({{"rope_scaling", {{"rope_type", "longrope"}, {"short_factor", {1, 2}}}}}, "must be a list of 64 numbers");
  refused({{"rope_scaling", "yarn"}}, "must be an object");
  refused({{"quantization_config", {{"quant_method", "gptq"}}}}, "quantized with \"gptq\", which is not supported");
  refused({{"quantization_config", {{"quant_method", "awq"}}}}, "use the checkpoint that it was made from");
  refused(
      {{"quantization_config",
        {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}, {"transform_config", {{"R1", 1}}}}}},
      "quantization_config.transform_config");
  refused({{"hidden_act", "gelu_10"}}, "gelu_10");
  refused({{"torch_dtype", "float8_e4m3fn"}}, "float8_e4m3fn");
  refused({{"dtype", 16}}, "\"dtype\" must be a text, found 16");
  refused({{"num_hidden_layers", 4097}}, "\"num_hidden_layers\": 4097");
  refused({{"model_type", "qwen3_moe"}, {"num_experts", 1 << 17}}, "131072 experts a layer");
  refused({{"model_type", "qwen3_moe"}, {"mlp_only_layers", {1, "2"}}}, "\"mlp_only_layers\" must be a list");
  for (const Json& turning : {Json{true, false, true, true}, Json{1, 0, 1}, Json{2, 0, 1, 1}, Json("1011")}) {
    refused({{"model_type", "smollm3"}, {"no_rope_layers", turning}}, "a list of 4 numbers, each 0 or 1");
  }
  const fs::path broken = folder.with({}, "broken");
  write_file(broken / "config.json", "{\"hidden_size\": 19");
  CHECK_ERROR(read_model_config(broken), DataError, "not valid JSON");
  write_file(broken / "config.json", "[]");
  CHECK_ERROR(read_model_config(broken), DataError, "is not a JSON object");
}

TEST_CASE("windows, stretched RoPE and positions differ between layers as files of older kinds say, too") {
  const ModelFolder folder;
  const Json sliding{{"sliding_window", 64}, {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}}};
  Json changes = sliding;
  changes["model_type"] = "olmo3";
  const ModelConfig olmo = read_model_config(folder.with(changes));
  CHECK(olmo.blocks[0].mixer.window == 64);
  CHECK(olmo.blocks[0].mixer.rope.plain(128));
  CHECK(olmo.blocks[3].mixer.window == 0);
  CHECK(olmo.blocks[3].mixer.rope.type == "yarn");
  changes["model_type"] = "exaone4";
  const ModelConfig exaone = read_model_config(folder.with(changes));
  CHECK(exaone.blocks[0].mixer.rope.dim == 128);
  CHECK(exaone.blocks[3].mixer.rope.dim == 0);
  CHECK(exaone.cache_layers() == std::vector{3});
  const ModelConfig smollm = read_model_config(folder.with({{"model_type", "smollm3"}}));
  CHECK(smollm.blocks[2].mixer.rope.dim == 128);
  CHECK(smollm.blocks[3].mixer.rope.dim == 0);
}

}  // namespace oscar
