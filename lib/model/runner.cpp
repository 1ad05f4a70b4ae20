// SPDX-License-Identifier: MIT
#include "model/runner.hpp"

#include <atomic>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "model/checkpoint.hpp"
#include "model/decoder.hpp"
#include "model/layout.hpp"

namespace oscar {
namespace {

void check_sequences(std::span<const TokenSequence> sequences, const ModelConfig& config) {
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const std::string where = "sequence " + std::to_string(s);
    if (sequences[s].empty()) throw DataError("the sequence is empty", where, "leave it out");
    if (sequences[s].size() > static_cast<std::size_t>(config.max_position_embeddings)) {
      throw DataError("the sequence has " + std::to_string(sequences[s].size()) + " tokens, the model's context is " +
                          std::to_string(config.max_position_embeddings),
                      where, "cut it with --seq-len");
    }
    for (std::size_t t = 0; t < sequences[s].size(); ++t) {
      const std::int32_t token = sequences[s][t];
      if (token >= 0 && token < config.vocab_size) continue;
      throw DataError(
          "token id " + std::to_string(token) + " is outside the vocabulary of " + std::to_string(config.vocab_size),
          where + ", position " + std::to_string(t), "use token ids of this model's tokenizer");
    }
  }
}

/// The hidden state of every sequence, between layers. Sequences are the units of parallel work: each is computed by
/// one thread in the same way, whatever the number of threads.
class Pass : public ModelPass {
 public:
  Pass(Decoder& decoder, const ModelConfig& config, std::span<const TokenSequence> sequences, Status& status)
      : decoder_(decoder), config_(config), sequences_(sequences), status_(status), hidden_(sequences.size()) {
    check_sequences(sequences, config);
    parallel_for(sequences.size(), [&](std::size_t s) {
      hidden_[s].resize(sequences_[s].size() * static_cast<std::size_t>(config_.hidden_size));
      decoder_.embed(sequences_[s], hidden_[s]);
    });
  }

  [[nodiscard]] int layer() const override { return layer_; }

  void step(const AttentionHook& attention, bool observe_only) override {
    OSCAR_CHECK(layer_ < config_.num_layers);
    throw_if_interrupted();
    decoder_.load_layer(layer_);
    for_each_sequence("layer " + std::to_string(layer_) + " of " + std::to_string(config_.num_layers) + ", sequence",
                      [&](std::size_t s) { step_sequence(s, attention, observe_only); });
    layer_ = observe_only ? config_.num_layers : layer_ + 1;
    ended_ = observe_only;
  }

  void logits(const LogitsHook& hook) override {
    OSCAR_CHECK(layer_ == config_.num_layers && !ended_);
    for_each_sequence("logits, sequence", [&](std::size_t s) {
      std::vector<float> logits(sequences_[s].size() * static_cast<std::size_t>(config_.vocab_size));
      decoder_.logits(hidden_[s], logits);
      hook(s, logits);
    });
  }

 private:
  void for_each_sequence(const std::string& stage, const std::function<void(std::size_t)>& task) {
    std::atomic<std::int64_t> done{0};
    parallel_for(sequences_.size(), [&](std::size_t s) {
      throw_if_interrupted();
      task(s);
      status_.progress(stage, ++done, static_cast<std::int64_t>(sequences_.size()));
    });
  }

  void step_sequence(std::size_t s, const AttentionHook& attention, bool observe_only) {
    const auto tokens = static_cast<std::int64_t>(sequences_[s].size());
    const int heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads, dim = config_.head_dim;
    const auto buffer = [&](int count) {
      return std::vector<float>(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(count) *
                                static_cast<std::size_t>(dim));
    };
    std::vector<float> q = buffer(heads), k = buffer(kv_heads), v = buffer(kv_heads), out = buffer(heads);
    decoder_.project(layer_, hidden_[s], q, k, v);
    const QkvView qkv{heads_view(q, tokens, heads, dim), heads_view(k, tokens, kv_heads, dim),
                      heads_view(v, tokens, kv_heads, dim)};
    const bool replaced = attention && attention(layer_, s, qkv, out);
    if (observe_only) return;
    if (!replaced) decoder_.attend(qkv, out);
    decoder_.finish_layer(layer_, out, hidden_[s]);
  }

  Decoder& decoder_;
  const ModelConfig& config_;
  std::span<const TokenSequence> sequences_;
  Status& status_;
  std::vector<std::vector<float>> hidden_;  // (T, hidden_size) each
  int layer_ = 0;
  bool ended_ = false;
};

class Runner : public ModelRunner {
 public:
  explicit Runner(const std::filesystem::path& model)
      : config_(read_model_config(model)), checkpoint_(model), decoder_(open_decoder(model)) {}

  [[nodiscard]] const ModelConfig& config() const override { return config_; }

  [[nodiscard]] std::unique_ptr<ModelPass> begin(std::span<const TokenSequence> sequences, Status& status) override {
    return std::make_unique<Pass>(*decoder_, config_, sequences, status);
  }

 private:
  [[nodiscard]] std::unique_ptr<Decoder> open_decoder(const std::filesystem::path& model) const {
    check_weights(config_, checkpoint_, model.string());
    return make_decoder(config_, checkpoint_);
  }

  ModelConfig config_;
  Checkpoint checkpoint_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace

void ModelRunner::run(std::span<const TokenSequence> sequences, const RunHooks& hooks, Status& status) {
  const std::unique_ptr<ModelPass> pass = begin(sequences, status);
  for (int layer = 0; layer < config().num_layers; ++layer) {
    pass->step(hooks.attention, !hooks.logits && layer + 1 == config().num_layers);
    if (hooks.layer_done) hooks.layer_done(layer);
  }
  if (hooks.logits) pass->logits(hooks.logits);
}

std::unique_ptr<ModelRunner> open_model(const std::filesystem::path& model) { return std::make_unique<Runner>(model); }

}  // namespace oscar
