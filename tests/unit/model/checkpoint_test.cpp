// SPDX-License-Identifier: MIT
#include "model/weights/checkpoint.hpp"

#include <doctest/doctest.h>

#include "base/files.hpp"
#include "base/json.hpp"
#include "model/run/runner.hpp"
#include "support/support.hpp"
#include "unit/model/random_model.hpp"

namespace oscar {
namespace {

using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

/// A tiny model with an untied head: hidden 4, one layer, 2/1 heads of 2, MLP 3, vocabulary 5.
class TinyModel {
 public:
  TinyModel() {
    Json config = read_json(test::data("qwen3-2m/config.json"));
    for (const auto& [key, value] : std::map<std::string, int>{{"hidden_size", 4},
                                                               {"num_hidden_layers", 1},
                                                               {"num_attention_heads", 2},
                                                               {"num_key_value_heads", 1},
                                                               {"head_dim", 2},
                                                               {"intermediate_size", 3},
                                                               {"vocab_size", 5}}) {
      config[key] = value;
    }
    config["tie_word_embeddings"] = false;
    write_json(folder_ / "config.json", config);
    for (const WeightSpec& spec : expected_weights(read_model_config(folder_.path()))) {
      Tensor tensor(DType::kF32, spec.shape);
      int i = 0;
      for (float& value : tensor.values<float>()) value = 0.1F * static_cast<float>(++i % 7) + 0.1F;
      weights.emplace_back(spec.name, std::move(tensor));
    }
  }

  [[nodiscard]] const fs::path& path() const { return folder_.path(); }
  [[nodiscard]] Tensor& at(const std::string& name) {
    return std::find_if(weights.begin(), weights.end(), [&](const auto& entry) { return entry.first == name; })->second;
  }
  void save_single() const { write_safetensors(path() / "model.safetensors", weights, {}); }
  /// Every weight in a shard of its own.
  void save_sharded() const {
    Json map = Json::object();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      map[weights[i].first] = "shard-" + std::to_string(i) + ".safetensors";
      write_safetensors(path() / map[weights[i].first].get<std::string>(), {weights[i]}, {});
    }
    save_index({{"weight_map", map}});
  }
  void save_index(const Json& index) const { write_json(path() / "model.safetensors.index.json", index); }

  NamedTensors weights;

 private:
  test::TemporaryFolder folder_;
};

std::vector<float> logits_of(const fs::path& model) { return test::logits_of(*open_model(model), {{0, 3, 1}}).front(); }

}  // namespace

TEST_CASE("one file, many shards and half precision give the same model") {
  TinyModel model;
  model.save_single();
  const std::vector<float> single = logits_of(model.path());
  CHECK(single.size() == 3 * 5);
  model.save_sharded();
  fs::remove(model.path() / "model.safetensors");
  CHECK(logits_of(model.path()) == single);

  for (auto& [name, tensor] : model.weights) tensor = convert(tensor, DType::kBF16);
  model.save_sharded();
  const std::vector<float> rounded = logits_of(model.path());
  CHECK(rounded != single);
  for (auto& [name, tensor] : model.weights) tensor = convert(tensor, DType::kF32);
  model.save_sharded();
  CHECK(logits_of(model.path()) == rounded);
}

TEST_CASE("an untied head is used") {
  TinyModel model;
  model.save_single();
  const std::vector<float> before = logits_of(model.path());
  model.at("lm_head.weight").values<float>()[2 * 4] += 1;  // token 2, first channel
  model.save_single();
  const std::vector<float> after = logits_of(model.path());
  for (std::size_t i = 0; i < before.size(); ++i) CHECK((before[i] != after[i]) == (i % 5 == 2));
}

TEST_CASE("a checkpoint that does not fit its config is refused with the weight's name") {
  TinyModel model;
  CHECK_ERROR(open_model(model.path()), DataError, "has no weights");
  write_file(model.path() / "pytorch_model.bin", "x");
  CHECK_ERROR(open_model(model.path()), DataError, "save the checkpoint in safetensors format");
  write_file(model.path() / "model-00001-of-00002.safetensors", "x");
  CHECK_ERROR(open_model(model.path()), DataError, "fetch model.safetensors.index.json too");
  model.at("model.layers.0.self_attn.q_norm.weight") = Tensor(DType::kF32, {3});
  model.save_single();
  CHECK_ERROR(open_model(model.path()), DataError,
              "weight model.layers.0.self_attn.q_norm.weight is [3], config.json asks for [2]");
  model.at("model.layers.0.self_attn.q_norm.weight") = Tensor(DType::kI32, {2});
  model.save_single();
  CHECK_ERROR(open_model(model.path()), DataError, "is of int32");
  model.weights.pop_back();
  model.save_single();
  CHECK_ERROR(open_model(model.path()), DataError, "q_norm.weight is of int32");
  model.at("model.layers.0.self_attn.q_norm.weight") = Tensor(DType::kF32, {2});
  model.save_single();
  CHECK_ERROR(open_model(model.path()), DataError, "has no weight model.layers.0.mlp.down_proj.weight");
}

TEST_CASE("an index that is malformed or leads outside is refused") {
  TinyModel model;
  model.save_sharded();
  CHECK(logits_of(model.path()).size() == 15);
  const std::string first = model.weights[0].first;
  model.save_index(Json::array());
  CHECK_ERROR(open_model(model.path()), DataError, "no object \"weight_map\"");
  model.save_index({{"weight_map", {{first, 3}}}});
  CHECK_ERROR(open_model(model.path()), DataError, "the index names the file 3");
  model.save_index({{"weight_map", {{first, "../x.safetensors"}}}});
  CHECK_ERROR(open_model(model.path()), DataError, "../x.safetensors");
  model.save_index({{"weight_map", {{first, "gone.safetensors"}}}});
  CHECK_ERROR(open_model(model.path()), DataError, "the file is missing, which the index names for " + first);
  model.save_index({{"weight_map", {{first, "shard-1.safetensors"}}}});
  CHECK_ERROR(open_model(model.path()), DataError, "shard-1.safetensors for " + first + ", which neither that nor");
}

TEST_CASE("an index that names the wrong file, or lies beside a single file, is told of") {
  TinyModel model;
  model.save_sharded();
  const std::vector<float> right = logits_of(model.path());
  Json map = read_json(model.path() / "model.safetensors.index.json").at("weight_map");
  std::swap(map[model.weights[0].first], map[model.weights[1].first]);
  model.save_index({{"weight_map", map}});
  CHECK(logits_of(model.path()) == right);
  CHECK(open_checkpoint(model.path())->notices().at(0).find("the wrong file for") != std::string::npos);
  model.at("lm_head.weight").values<float>()[0] += 1;
  model.save_single();
  CHECK(logits_of(model.path()) != right);
  CHECK(open_checkpoint(model.path())->notices().at(0).find("model.safetensors is read") != std::string::npos);
}

TEST_CASE("heads and names differ between checkpoints of one architecture") {
  TinyModel model;
  model.at("lm_head.weight").values<float>()[0] += 1;
  model.save_single();
  const std::vector<float> with_head = logits_of(model.path());
  Json config = read_json(model.path() / "config.json");
  config["tie_word_embeddings"] = true;
  write_json(model.path() / "config.json", config);
  CHECK(logits_of(model.path()) == with_head);  // its own head counts
  const auto runner = open_model(model.path());
  REQUIRE(runner->config().notices.size() == 1);
  CHECK(runner->config().notices[0].find("lm_head.weight is another matrix") != std::string::npos);
  model.at("lm_head.weight") = model.at("model.embed_tokens.weight");
  model.save_single();
  CHECK(open_model(model.path())->config().notices.empty());

  std::erase_if(model.weights, [](const auto& weight) { return weight.first == "lm_head.weight"; });
  for (auto& [name, tensor] : model.weights) name = name.substr(std::string("model.").size());
  model.save_single();
  const std::vector<float> base = logits_of(model.path());  // saved without "model."
  config["tie_word_embeddings"] = false;
  write_json(model.path() / "config.json", config);
  CHECK_ERROR(logits_of(model.path()), DataError, "has no lm_head.weight");
  Status silent;  // queries, keys and values need none
  open_model(model.path())->run(std::vector<TokenSequence>{{0, 3, 1}}, {}, silent);
}

TEST_CASE("weights that a model does not use are refused, but for what is harmless") {
  TinyModel model;
  model.weights.emplace_back("model.layers.0.self_attn.rotary_emb.inv_freq", Tensor(DType::kF32, {1}));
  model.weights.emplace_back("model.layers.1.eh_proj.weight", Tensor(DType::kF32, {1}));
  model.weights.emplace_back("model.layers.0.self_attn.k_proj.k_scale", Tensor(DType::kF32, {1}));
  model.save_single();
  CHECK(logits_of(model.path()).size() == 15);
  for (const char* name : {"self_attn.q_proj.bias", "mlp.router_scale"}) {
    model.weights.emplace_back(std::string("model.layers.0.") + name, Tensor(DType::kF32, {4}));
    model.save_single();
    CHECK_ERROR(open_model(model.path()), DataError, name + std::string(", which models of this config do not use"));
    model.weights.pop_back();
  }
}

TEST_CASE("float8 embeddings are read with their scales, and types without a name here are named") {
  TinyModel model;
  Json config = read_json(model.path() / "config.json");
  config["quantization_config"] = {{"quant_method", "fp8"}};
  write_json(model.path() / "config.json", config);
  const auto set = [&](DType dtype, std::byte one, DType scale_type, std::vector<std::int64_t> shape, std::byte two) {
    Tensor table(dtype, {5, 4}), scale(scale_type, std::move(shape));
    std::ranges::fill(table.data, one);
    std::ranges::fill(scale.data, two);
    model.at(kEmbeddingName) = table;
    model.weights.back() = {std::string(kEmbeddingName) + "_scale_inv", scale};
    model.save_single();
  };
  model.at(kEmbeddingName) = Tensor::from({5, 4}, std::vector<float>(20, 2.0F));
  model.save_single();
  const std::vector<float> plain = logits_of(model.path());
  model.weights.push_back({});
  constexpr auto kTwo = std::byte{128};                              // as E8M0
  set(DType::kF8E4M3, std::byte{0x38}, DType::kE8M0, {1, 1}, kTwo);  // 1 times 2
  CHECK(logits_of(model.path()) == plain);
  set(DType::kF8E5M2, std::byte{0x3c}, DType::kE8M0, {5, 1}, kTwo);
  CHECK(logits_of(model.path()) == plain);
  std::string content = read_text(model.path() / "model.safetensors");
  content.replace(content.find("F8_E5M2"), 7, "F8_E9M9");
  write_file(model.path() / "model.safetensors", content);
  CHECK_ERROR(open_model(model.path()), DataError, "has the element type F8_E9M9");
}

}  // namespace oscar
