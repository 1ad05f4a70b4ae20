// SPDX-License-Identifier: MIT
#include "model/runner.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <future>
#include <set>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "model/checkpoint.hpp"
#include "model/layout.hpp"
#include "model/progress.hpp"
#include "tensor/safetensors.hpp"

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
  Pass(Decoder& decoder, const Checkpoint& checkpoint, const ModelConfig& config,
       std::span<const TokenSequence> sequences, int layers, Status& status)
      : decoder_(decoder),
        checkpoint_(checkpoint),
        config_(config),
        sequences_(sequences),
        layers_(layers),
        status_(status),
        watcher_(dynamic_cast<ModelStatus*>(&status)),
        hidden_(sequences.size()) {
    check_sequences(sequences, config);
    for (const TokenSequence& sequence : sequences) tokens_ += static_cast<std::int64_t>(sequence.size());
    decoder_.make_room(tokens_);
  }

  [[nodiscard]] int layer() const override { return layer_; }

  void step(const AttentionHook& attention, bool observe_only) override {
    run_layer(
        [&](std::size_t s, const LoadedWeights& weights) {
          attention ? attend_with_hook(s, weights, attention, observe_only) : attend(s, weights, {}, observe_only);
        },
        observe_only);
  }

  void capture(const CaptureHook& target, bool observe_only) override {
    OSCAR_CHECK(block().has_cache());
    run_layer([&](std::size_t s, const LoadedWeights& weights) { attend(s, weights, target, observe_only); },
              observe_only);
  }

  void save(const std::filesystem::path& path) const override {
    std::vector<std::pair<std::string, Tensor>> states;
    for (const auto& rows : hidden_) states.emplace_back(std::to_string(states.size()), decoder_.copy_hidden(*rows));
    write_safetensors(path, states, {{"layer", std::to_string(layer_)}});
  }

  void restore(const std::filesystem::path& path) override {
    const SafetensorsFile file(path);
    const auto layer = file.metadata().find("layer");
    const int behind = layer == file.metadata().end() ? 0 : std::atoi(layer->second.c_str());
    if (behind <= 0 || behind >= config_.num_layers || file.tensors().size() != sequences_.size()) {
      throw DataError("these are not hidden states of this model and these sequences", path.string(), "");
    }
    std::vector<std::unique_ptr<Rows>> hidden;
    for (const TokenSequence& sequence : sequences_) {
      hidden.push_back(decoder_.hidden_from(file.at(std::to_string(hidden.size())), sequence.size()));
    }
    decoder_.finish();
    hidden_ = std::move(hidden);
    layer_ = behind;
  }

  void logits(const LogitsHook& hook) override {
    OSCAR_CHECK(layer_ == config_.num_layers && !ended_);
    std::atomic<std::int64_t> done{0};
    for_each_sequence([&](std::size_t s) {
      std::vector<float> logits(sequences_[s].size() * static_cast<std::size_t>(config_.vocab_size));
      decoder_.logits(*hidden_[s], logits);
      hook(s, logits);
      status_.progress("logits, sequence", ++done, static_cast<std::int64_t>(sequences_.size()));
    });
  }

 private:
  void for_each_sequence(const std::function<void(std::size_t)>& task) {
    parallel_for(
        sequences_.size(),
        [&](std::size_t s) {
          throw_if_interrupted();
          task(s);
        },
        decoder_.concurrent_sequences());
  }

  /// Of the layer that runs.
  void tell_progress(std::int64_t tokens) {
    if (watcher_ == nullptr) return;
    watcher_->model_progress({tokens_, layers_, layer_ * tokens_ + tokens, checkpoint_.bytes_read()});
  }

  [[nodiscard]] const BlockSpec& block() const { return config_.blocks[static_cast<std::size_t>(layer_)]; }

  void start_loading(int layer) {
    next_ = std::async(std::launch::async, [this, layer] { return decoder_.load_layer(layer); });
  }

  void embed() {
    parallel_for(sequences_.size(), [&](std::size_t s) { hidden_[s] = decoder_.embed(sequences_[s]); });
  }

  void run_layer(const std::function<void(std::size_t, const LoadedWeights&)>& mix, bool observe_only) {
    OSCAR_CHECK(layer_ < config_.num_layers);
    throw_if_interrupted();
    if (!next_.valid()) start_loading(layer_);
    if (layer_ == 0) embed();
    tell_progress(0);
    const std::unique_ptr<LoadedWeights> weights = next_.get();
    if (!observe_only && layer_ + 1 < config_.num_layers) start_loading(layer_ + 1);
    const bool experts = block().mlp.experts.count > 0;
    std::atomic<std::int64_t> passed{0};
    for_each_sequence([&](std::size_t s) {
      block().has_cache() ? mix(s, *weights) : decoder_.add_recurrent(*weights, *hidden_[s]);
      if (!observe_only && !experts) decoder_.add_mlp(*weights, *hidden_[s]);
      passed += static_cast<std::int64_t>(sequences_[s].size());
      tell_progress(!observe_only && experts ? passed / 2 : passed.load());
    });
    if (!observe_only && experts) step_experts(*weights);
    decoder_.finish();  // or the weights would go while a GPU computes with them
    layer_ = observe_only ? config_.num_layers : layer_ + 1;
    ended_ = observe_only;
  }

  void attend(std::size_t s, const LoadedWeights& weights, const CaptureHook& target, bool observe_only) {
    if (!target && observe_only) return;
    const std::unique_ptr<Rows> qkv = decoder_.project(weights, *hidden_[s]);
    QkvBuffers buffers;
    if (target) decoder_.copy_qkv(*qkv, buffers = target(s));
    if (!observe_only) decoder_.add_exact_attention(weights, *qkv, *hidden_[s]);
    if (target) check_finite(s, decoder_.finish_copy(*qkv), buffers.dtype);
  }

  void check_finite(std::size_t sequence, const std::string& what, DType dtype) const {
    if (what.empty()) return;
    throw DataError(
        what + " has values that are not finite in " + std::string(name_of(dtype)),
        config_.identity.id + ", layer " + std::to_string(layer_) + ", sequence " + std::to_string(sequence),
        "check the checkpoint, or choose a wider --dtype");
  }

  void attend_with_hook(std::size_t s, const LoadedWeights& weights, const AttentionHook& attention,
                        bool observe_only) {
    const MixerSpec& m = block().mixer;
    const auto tokens = static_cast<std::int64_t>(sequences_[s].size());
    const auto buffer = [&](int heads, int dim) {
      return std::vector<float>(static_cast<std::size_t>(tokens * heads * dim));
    };
    std::vector<float> q = buffer(m.num_heads, m.head_dim), k = buffer(m.num_kv_heads, m.head_dim);
    std::vector<float> v = buffer(m.num_kv_heads, m.value_dim), out = buffer(m.num_heads, m.value_dim);
    const std::unique_ptr<Rows> own = decoder_.project(weights, *hidden_[s]);
    const auto bytes = [](std::vector<float>& values) { return reinterpret_cast<std::byte*>(values.data()); };
    decoder_.copy_qkv(*own, {DType::kF32, bytes(q), bytes(k), bytes(v)});
    (void)decoder_.finish_copy(*own);
    const QkvView qkv{heads_view(q, tokens, m.num_heads, m.head_dim), heads_view(k, tokens, m.num_kv_heads, m.head_dim),
                      heads_view(v, tokens, m.num_kv_heads, m.value_dim)};
    const bool replaced = attention(layer_, s, qkv, out);
    if (observe_only) return;
    if (replaced) return decoder_.add_attention(weights, out, *hidden_[s]);
    decoder_.add_exact_attention(weights, *own, *hidden_[s]);
  }

  /// Experts in groups, over all sequences: each that was chosen is loaded once, and two groups are in memory.
  void step_experts(const LoadedWeights& weights) {
    std::vector<std::unique_ptr<Rows>> routed(sequences_.size());
    const int together = decoder_.concurrent_sequences();
    parallel_for(
        sequences_.size(), [&](std::size_t s) { routed[s] = decoder_.route(weights, *hidden_[s]); }, together);
    std::set<int> named;
    for (const auto& rows : routed) named.merge(as_set(decoder_.chosen_experts(*rows)));
    const std::vector<int> chosen(named.begin(), named.end());
    const auto step = static_cast<std::size_t>(decoder_.experts_at_once(layer_));
    const auto group = [&](std::size_t first) {
      return std::span(chosen).subspan(first, std::min(step, chosen.size() - first));
    };
    const auto load = [&, layer = layer_](std::size_t first) { return decoder_.load_experts(layer, group(first)); };
    using Loaded = std::vector<std::unique_ptr<LoadedWeights>>;
    std::future<Loaded> next = std::async(std::launch::async, load, 0);
    for (std::size_t first = 0; first < chosen.size(); first += step) {
      throw_if_interrupted();
      const Loaded own = next.get();
      if (first + step < chosen.size()) next = std::async(std::launch::async, load, first + step);
      parallel_for(
          sequences_.size(),
          [&](std::size_t s) {
            for (std::size_t i = 0; i < own.size(); ++i) {
              decoder_.add_expert(weights, group(first)[i], *own[i], *hidden_[s], *routed[s]);
            }
          },
          together);
      decoder_.finish();
      const auto count = static_cast<std::int64_t>(chosen.size());
      tell_progress(tokens_ / 2 + (tokens_ - tokens_ / 2) * static_cast<std::int64_t>(first + own.size()) / count);
    }
    parallel_for(
        sequences_.size(), [&](std::size_t s) { decoder_.add_experts_sum(weights, *routed[s], *hidden_[s]); },
        together);
  }

  static std::set<int> as_set(const std::vector<int>& values) { return {values.begin(), values.end()}; }

  Decoder& decoder_;
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  std::span<const TokenSequence> sequences_;
  std::int64_t tokens_ = 0;
  int layers_;
  Status& status_;
  ModelStatus* watcher_;  // the same, if it wants to know more
  std::vector<std::unique_ptr<Rows>> hidden_;
  std::future<std::unique_ptr<LoadedWeights>> next_;  // of the layer after the one that runs
  int layer_ = 0;
  bool ended_ = false;
};

class Runner : public ModelRunner {
 public:
  Runner(const std::filesystem::path& model, const DecoderOptions& options)
      : config_(read_model_config(model)), checkpoint_(model), decoder_(open_decoder(model, options)) {}

  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] ScoreRule score_rule(int layer) const override {
    const MixerSpec& m = config_.blocks.at(static_cast<std::size_t>(layer)).mixer;
    ScoreRule rule{m.soft_cap, m.window, {}};
    if (!m.sinks) return rule;
    const std::vector<double> sinks = checkpoint_.load(layer_weight_name(layer, "self_attn.sinks")).to_doubles();
    rule.sinks.assign(sinks.begin(), sinks.end());
    return rule;
  }
  [[nodiscard]] std::string description() const override { return decoder_->description(); }
  [[nodiscard]] std::shared_ptr<std::byte> host_memory(std::size_t bytes) const override {
    return decoder_->host_memory(bytes);
  }

  [[nodiscard]] std::unique_ptr<ModelPass> begin(std::span<const TokenSequence> sequences, int layers,
                                                 Status& status) override {
    return std::make_unique<Pass>(*decoder_, checkpoint_, config_, sequences, layers, status);
  }

 private:
  [[nodiscard]] std::unique_ptr<Decoder> open_decoder(const std::filesystem::path& model,
                                                      const DecoderOptions& options) {
    settle_expert_layouts(config_, checkpoint_);
    check_weights(config_, checkpoint_, model.string());
    return make_decoder(config_, checkpoint_, options);
  }

  ModelConfig config_;
  Checkpoint checkpoint_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace

void ModelRunner::run(std::span<const TokenSequence> sequences, const RunHooks& hooks, Status& status) {
  const std::unique_ptr<ModelPass> pass = begin(sequences, config().num_layers, status);
  for (int layer = 0; layer < config().num_layers; ++layer) {
    pass->step(hooks.attention, !hooks.logits && layer + 1 == config().num_layers);
    if (hooks.layer_done) hooks.layer_done(layer);
  }
  if (hooks.logits) pass->logits(hooks.logits);
}

std::unique_ptr<ModelRunner> open_model(const std::filesystem::path& model, const DecoderOptions& options) {
  return std::make_unique<Runner>(model, options);
}

}  // namespace oscar
