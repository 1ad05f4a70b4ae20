// SPDX-License-Identifier: MIT
#include "model/runner.hpp"

#include <atomic>
#include <future>
#include <set>

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
    const std::unique_ptr<LoadedWeights> weights = next_.valid() ? next_.get() : decoder_.load_layer(layer_);
    if (!observe_only && layer_ + 1 < config_.num_layers) {
      next_ = std::async(std::launch::async, [this, layer = layer_ + 1] { return decoder_.load_layer(layer); });
    }
    const std::string stage = "layer " + std::to_string(layer_) + " of " + std::to_string(config_.num_layers);
    for_each_sequence(stage + ", sequence",
                      [&](std::size_t s) { step_sequence(s, *weights, attention, observe_only); });
    if (!observe_only && block().mlp.experts.count > 0) step_experts(*weights, stage);
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

  [[nodiscard]] const BlockSpec& block() const { return config_.blocks[static_cast<std::size_t>(layer_)]; }

  void step_sequence(std::size_t s, const LoadedWeights& weights, const AttentionHook& attention, bool observe_only) {
    if (block().has_cache()) {
      const std::vector<float> out = attend_sequence(s, weights, attention, observe_only);
      if (observe_only) return;
      decoder_.add_attention(weights, out, hidden_[s]);
    } else {
      decoder_.add_recurrent(weights, hidden_[s]);
    }
    if (block().mlp.experts.count == 0) decoder_.add_mlp(weights, hidden_[s]);
  }

  std::vector<float> attend_sequence(std::size_t s, const LoadedWeights& weights, const AttentionHook& attention,
                                     bool observe_only) {
    const MixerSpec& m = block().mixer;
    const auto tokens = static_cast<std::int64_t>(sequences_[s].size());
    const auto buffer = [&](int heads, int dim) {
      return std::vector<float>(static_cast<std::size_t>(tokens * heads * dim));
    };
    std::vector<float> q = buffer(m.num_heads, m.head_dim), k = buffer(m.num_kv_heads, m.head_dim);
    std::vector<float> v = buffer(m.num_kv_heads, m.value_dim), out = buffer(m.num_heads, m.value_dim);
    decoder_.project(weights, hidden_[s], q, k, v);
    const QkvView qkv{heads_view(q, tokens, m.num_heads, m.head_dim), heads_view(k, tokens, m.num_kv_heads, m.head_dim),
                      heads_view(v, tokens, m.num_kv_heads, m.value_dim)};
    const bool replaced = attention && attention(layer_, s, qkv, out);
    if (!replaced && !observe_only) decoder_.attend(weights, qkv, out);
    return out;
  }

  /// Expert by expert, over all sequences: each that was chosen is loaded once, and two are in memory.
  void step_experts(const LoadedWeights& weights, const std::string& stage) {
    std::vector<Routing> routing(sequences_.size());
    std::vector<std::vector<float>> sums(sequences_.size());
    parallel_for(sequences_.size(), [&](std::size_t s) {
      sums[s].resize(hidden_[s].size());
      routing[s] = decoder_.route(weights, hidden_[s], sums[s]);
    });
    std::set<std::int32_t> chosen;
    for (const Routing& of_sequence : routing) chosen.insert(of_sequence.experts.begin(), of_sequence.experts.end());
    const auto load = [this, layer = layer_](std::int32_t expert) { return decoder_.load_expert(layer, expert); };
    std::future<std::unique_ptr<LoadedWeights>> next = std::async(std::launch::async, load, *chosen.begin());
    std::int64_t done = 0;
    for (auto expert = chosen.begin(); expert != chosen.end(); ++expert) {
      throw_if_interrupted();
      const std::unique_ptr<LoadedWeights> own = next.get();
      if (std::next(expert) != chosen.end()) next = std::async(std::launch::async, load, *std::next(expert));
      parallel_for(sequences_.size(), [&](std::size_t s) {
        decoder_.add_expert(weights, *expert, *own, routing[s], hidden_[s], sums[s]);
      });
      status_.progress(stage + ", expert", ++done, static_cast<std::int64_t>(chosen.size()));
    }
    parallel_for(sequences_.size(), [&](std::size_t s) { decoder_.add_experts_sum(weights, sums[s], hidden_[s]); });
  }

  Decoder& decoder_;
  const ModelConfig& config_;
  std::span<const TokenSequence> sequences_;
  Status& status_;
  std::vector<std::vector<float>> hidden_;            // (T, hidden_size) each
  std::future<std::unique_ptr<LoadedWeights>> next_;  // of the layer after the one that runs
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
  [[nodiscard]] std::unique_ptr<Decoder> open_decoder(const std::filesystem::path& model) {
    settle_expert_layouts(config_, checkpoint_);
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
