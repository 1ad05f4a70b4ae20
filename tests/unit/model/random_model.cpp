// SPDX-License-Identifier: MIT
#include "unit/model/random_model.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/files.hpp"
#include "base/json.hpp"
#include "model/weights/checkpoint.hpp"
#include "support/support.hpp"
#include "tensor/safetensors.hpp"
#include "unit/verify/text_figures.hpp"

namespace oscar::test {
namespace {

constexpr int kVocab = 64;

Json common(const char* model_type) {
  return {{"model_type", model_type}, {"hidden_size", 64},
          {"num_hidden_layers", 3},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"head_dim", 32},
          {"intermediate_size", 96},  {"max_position_embeddings", 512},
          {"vocab_size", kVocab},     {"rms_norm_eps", 1e-6},
          {"hidden_act", "silu"},     {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
}

Json with(Json config, const Json& members) {
  config.update(members);
  return config;
}

/// The last two read the keys and values of layers 2 and 3.
Json shared_caches_types() {
  Json types = Json::array();
  for (int layer = 0; layer < 6; ++layer) types.push_back(layer % 2 == 0 ? "sliding_attention" : "full_attention");
  return types;
}

const std::map<std::string, Json>& configs() {
  static const Json grouped = {{"n_routed_experts", 8},
                               {"num_experts_per_tok", 2},
                               {"moe_intermediate_size", 32},
                               {"n_shared_experts", 1},
                               {"n_group", 4},
                               {"topk_group", 2},
                               {"first_k_dense_replace", 1},
                               {"routed_scaling_factor", 1.5}};
  static const std::map<std::string, Json> kConfigs{
      {"dense", common("qwen3")},
      {"soft caps and windows", with(common("gemma2"), {{"sliding_window", 20},
                                                        {"hidden_activation", "gelu_pytorch_tanh"},
                                                        {"attn_logit_softcapping", 30.0},
                                                        {"final_logit_softcapping", 20.0}})},
      {"sinks and stacked experts",
       with(common("gpt_oss"), {{"sliding_window", 20}, {"num_local_experts", 6}, {"num_experts_per_tok", 2}})},
      {"gated delta", with(common("qwen3_next"), {{"linear_num_key_heads", 2},
                                                  {"linear_num_value_heads", 4},
                                                  {"linear_key_head_dim", 16},
                                                  {"linear_value_head_dim", 24},
                                                  {"linear_conv_kernel_dim", 4},
                                                  {"full_attention_interval", 3},
                                                  {"num_experts", 8},
                                                  {"num_experts_per_tok", 2},
                                                  {"moe_intermediate_size", 32},
                                                  {"norm_topk_prob", true},
                                                  {"shared_expert_intermediate_size", 24}})},
      {"side by side", with(common("cohere"), {{"logit_scale", 0.25}})},
      {"shared caches and layer inputs", with(common("gemma4_text"), {{"num_hidden_layers", 6},
                                                                      {"sliding_window", 20},
                                                                      {"hidden_activation", "gelu_pytorch_tanh"},
                                                                      {"layer_types", shared_caches_types()},
                                                                      {"global_head_dim", 64},
                                                                      {"num_kv_shared_layers", 2},
                                                                      {"use_double_wide_mlp", true},
                                                                      {"hidden_size_per_layer_input", 16},
                                                                      {"vocab_size_per_layer_input", kVocab},
                                                                      {"tie_word_embeddings", false}})},
      {"latent attention", with(with(common("deepseek_v3"), grouped), {{"kv_lora_rank", 32},
                                                                       {"q_lora_rank", 24},
                                                                       {"qk_rope_head_dim", 8},
                                                                       {"qk_nope_head_dim", 16},
                                                                       {"v_head_dim", 12},
                                                                       {"head_dim", 8},
                                                                       {"num_key_value_heads", 4}})}};
  return kConfigs;
}

std::vector<float> floats(const HeadsView& rows) {
  std::vector<float> out(static_cast<std::size_t>(rows.num_tokens * rows.num_heads * rows.head_dim));
  const auto width = static_cast<std::size_t>(rows.head_dim);
  std::size_t i = 0;
  for (std::int64_t t = 0; t < rows.num_tokens; ++t) {
    for (int h = 0; h < rows.num_heads; ++h, i += width) rows.row(t, h, std::span(out).subspan(i, width));
  }
  return out;
}

}  // namespace

void write_random_model(const std::string& name, const fs::path& folder) {
  write_json(folder / "config.json", configs().at(name));
  std::mt19937 random(7);
  std::vector<std::pair<std::string, Tensor>> weights;
  for (const WeightSpec& spec : expected_weights(read_model_config(folder))) {
    Tensor tensor(DType::kF32, spec.shape);
    const bool vector = spec.shape.size() == 1;
    const bool embedding = spec.name == kEmbeddingName;
    const double spread = vector ? 0.2 : embedding ? 1 : 1 / std::sqrt(static_cast<double>(spec.shape.back()));
    std::normal_distribution<float> normal(vector ? 1 : 0, static_cast<float>(spread));
    for (float& value : tensor.values<float>()) value = normal(random);
    weights.emplace_back(spec.name, std::move(tensor));
  }
  write_safetensors(folder / "model.safetensors", weights, {});
}

void for_each_random_model(const std::function<void(const std::string& name, const fs::path& folder)>& check) {
  for (const auto& [name, config] : configs()) {
    CAPTURE(name);
    const TemporaryFolder folder;
    write_random_model(name, folder.path());
    check(name, folder.path());
  }
}

std::vector<std::vector<float>> run_model(const fs::path& model, const TokenSequence& tokens,
                                          const DecoderOptions& options) {
  std::vector<std::vector<float>> all;
  RunHooks hooks;
  hooks.attention = [&](int, std::size_t, const QkvView& qkv, std::span<float>) {
    for (const HeadsView& rows : {qkv.q, qkv.k, qkv.v}) all.push_back(floats(rows));
    return false;
  };
  hooks.logits = [&](std::size_t, std::span<const float> logits) { all.emplace_back(logits.begin(), logits.end()); };
  Status silent;
  open_model(model, options)->run(std::vector<TokenSequence>{tokens}, hooks, silent);
  return all;
}

std::vector<std::vector<float>> logits_of(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                                          RunHooks hooks) {
  std::vector<std::vector<float>> all(sequences.size());
  hooks.logits = [&](std::size_t s, std::span<const float> logits) { all[s].assign(logits.begin(), logits.end()); };
  Status silent;
  runner.run(sequences, hooks, silent);
  return all;
}

double check_predictions(const fs::path& model, const DecoderOptions& options, std::size_t tokens, double tolerance) {
  const auto runner = open_model(model, options);
  const auto vocab = static_cast<std::size_t>(runner->config().vocab_size);
  const auto states = [&](int offset) {
    std::vector<TokenSequence> texts{some_tokens(30), some_tokens(tokens)};
    for (TokenSequence& text : texts) std::rotate(text.begin(), text.begin() + offset, text.end());
    std::unique_ptr<FinalStates> found;
    Status silent;
    runner->run(texts, {.final_states = [&](std::unique_ptr<FinalStates> all) { found = std::move(all); }}, silent);
    return found;
  };
  const auto exact = states(0), one = states(1), two = states(2);
  constexpr std::size_t first = 3;
  const TokenSequence text = some_tokens(tokens);
  const auto next = std::span(text).subspan(first + 1);
  const std::vector<const FinalStates*> others{one.get(), exact.get(), two.get()};
  std::vector<TextFigures> figures(others.size(), TextFigures(next.size()));
  const std::vector<std::span<PositionFigures>> out(figures.begin(), figures.end());
  exact->compare(1, first, next, others, out);
  std::vector<float> p(tokens * vocab), q = p;
  exact->logits(1, p);
  double left_out = 0;
  for (std::size_t run = 0; run < others.size(); ++run) {
    others[run]->logits(1, q);
    for (std::size_t i = 0; i < next.size(); ++i) {
      const auto row = [&](std::span<const float> x) { return x.subspan((first + i) * vocab, vocab); };
      const PositionFigures &seen = figures[run][i],
                            plain = plain_figures(row(p), row(q), static_cast<std::size_t>(next[i]));
      const auto near = [&](double x) { return doctest::Approx(x).epsilon(tolerance).scale(1); };
      CHECK(seen.nll == near(plain.nll));
      CHECK(seen.nll_change == near(plain.nll_change));
      CHECK(seen.kld == near(plain.kld));
      CHECK(seen.dp == near(plain.dp));
      CHECK(seen.same_top == plain.same_top);
      CHECK(seen.right == plain.right);
      left_out =
          std::max(left_out, plain_figures(row(p), row(q), static_cast<std::size_t>(next[i]), -1e9).kld - plain.kld);
    }
  }
  return left_out;
}

std::vector<std::vector<float>> capture_layer(const fs::path& model, const TokenSequence& tokens, int layer,
                                              const DecoderOptions& options) {
  const std::unique_ptr<ModelRunner> runner = open_model(model, options);
  const std::vector<TokenSequence> sequences{tokens};
  Status silent;
  const std::unique_ptr<ModelPass> pass = runner->begin(sequences, {.layers = layer + 1}, silent);
  while (pass->layer() < layer) pass->step({}, false);
  const MixerSpec& m = runner->config().blocks[static_cast<std::size_t>(layer)].mixer;
  const auto count = static_cast<std::int64_t>(tokens.size());
  std::vector<HeadsView> views{{nullptr, DType::kBF16, count, m.num_heads, m.head_dim},
                               {nullptr, DType::kBF16, count, m.num_kv_heads, m.head_dim},
                               {nullptr, DType::kBF16, count, m.num_kv_heads, m.value_dim}};
  std::vector<std::shared_ptr<std::byte>> memory;
  for (HeadsView& view : views) {
    memory.push_back(runner->host_memory(static_cast<std::size_t>(count * view.bytes_per_token())));
    view.data = memory.back().get();
  }
  pass->capture(
      [&](std::size_t) {
        return QkvBuffers{DType::kBF16, memory[0].get(), memory[1].get(), memory[2].get()};
      },
      true);
  return {floats(views[0]), floats(views[1]), floats(views[2])};
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    error += (double{a.at(i)} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return a.size() == b.size() ? std::sqrt(error / norm) : INFINITY;
}

void check_bfloat16(const std::string& name, const std::vector<std::vector<float>>& rounded,
                    const std::vector<std::vector<float>>& exact) {
  REQUIRE(rounded.size() == exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    CAPTURE(i);
    const bool routed = name != "dense" && name != "soft caps and windows";
    const double error = distance(rounded[i], exact[i]);
    // Two layers with routers come before the first cache of "gated delta".
    if (!routed || i < 3) CHECK(error < (name == "gated delta" ? 0.1 : 0.03));
    CHECK(error > 1e-4);  // it is bfloat16
  }
}

TokenSequence some_tokens(std::size_t count) {
  std::mt19937 random(3);
  TokenSequence tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % kVocab);
  return tokens;
}

}  // namespace oscar::test
