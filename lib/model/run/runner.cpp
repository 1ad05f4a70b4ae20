// SPDX-License-Identifier: MIT
#include "model/run/runner.hpp"

#include <future>
#include <numeric>
#include <random>

#include "base/plugin.hpp"
#include "base/threads.hpp"
#include "model/run/pass.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {
namespace {

/// All of a layer that computing with it takes.
struct WholeLayer {
  std::shared_ptr<const LoadedWeights> weights;
  std::vector<std::unique_ptr<LoadedWeights>> experts;
};

class GradientRun {
 public:
  GradientRun(const Decoder& decoder, const ModelConfig& config, const HistoryQuestion& question, Status& status)
      : decoder_(decoder),
        config_(config),
        question_(question),
        status_(status),
        at_once_(decoder.concurrent_gradients()),
        states_(count()),
        kept_(count()),
        gradients_(count()) {}

  /// Through all layers, and from what the model predicts to gradients by the states behind the last one.
  void go_forward() {
    for_each_sequence([&](std::size_t s) { states_[s] = embedded(s); });
    load_ahead(0);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const WholeLayer whole = next_.get();
      if (layer + 1 < config_.num_layers) load_ahead(layer + 1);
      for_each_sequence([&](std::size_t s) {
        if (layer > 0) kept_[s].push_back(decoder_.kept_for_gradients(*states_[s]));
        states_[s] = decoder_.behind(*whole.weights, whole.experts, *states_[s]);
      });
      finish_layer();
    }
    const std::shared_ptr<const LoadedWeights> head = decoder_.load_head();
    for_each_sequence([&](std::size_t s) { predict(s, *head); });
    decoder_.finish();
  }

  /// All draws together, which share what each layer makes of its hidden states.
  void go_back(const HistoryHook& hook) {
    load_ahead(config_.num_layers - 1);
    for (int layer = config_.num_layers - 1, last = config_.cache_layers().front(); layer >= last; --layer) {
      const WholeLayer whole = next_.get();
      if (layer > last) load_ahead(layer - 1);
      for_each_sequence([&](std::size_t s) { take_back(layer, whole, s, hook); });
      finish_layer();
    }
  }

 private:
  [[nodiscard]] std::size_t count() const { return question_.sequences.size(); }
  [[nodiscard]] std::size_t draws() const { return static_cast<std::size_t>(question_.draws); }

  [[nodiscard]] std::unique_ptr<Rows> embedded(std::size_t s) const {
    return decoder_.embed(question_.sequences[s], question_.first_positions.empty() ? 0 : question_.first_positions[s]);
  }

  void predict(std::size_t s, const LoadedWeights& head) {
    std::vector<std::vector<float>> numbers;
    for (std::size_t draw = 0; draw < draws(); ++draw) {
      numbers.push_back(draws_for(draw * count() + s, question_.sequences[s].size()));
    }
    gradients_[s] = decoder_.likelihood_gradients(head, *states_[s], numbers);
    states_[s].reset();
  }

  template <class F>
  void for_each_sequence(const F& f) const {
    parallel_for(
        count(),
        [&](std::size_t s) {
          throw_if_interrupted();
          f(s);
        },
        at_once_);
  }

  /// Begins to load the next layer. A layer with experts is loaded only when it is needed: two would take much memory.
  void load_ahead(int layer) {
    const bool experts = config_.block(layer).mlp.experts.count > 0;
    next_ = std::async(experts ? std::launch::deferred : std::launch::async, [this, layer] { return loaded(layer); });
  }

  [[nodiscard]] WholeLayer loaded(int layer) const {
    std::vector<int> experts(static_cast<std::size_t>(config_.block(layer).mlp.experts.count));
    std::iota(experts.begin(), experts.end(), 0);
    WholeLayer whole{decoder_.load_layer(layer), {}};
    if (!experts.empty()) whole.experts = decoder_.load_experts(layer, experts);
    return whole;
  }

  void take_back(int layer, const WholeLayer& whole, std::size_t s, const HistoryHook& hook) {
    const bool attends = config_.block(layer).attends();
    const MixerSpec& mixer = config_.block(layer).mixer;
    const std::size_t heads =
        attends ? question_.sequences[s].size() * static_cast<std::size_t>(mixer.num_kv_heads) : 0;
    std::vector<std::vector<float>> keys(draws(), std::vector<float>(heads * static_cast<std::size_t>(mixer.head_dim)));
    std::vector<std::vector<float>> values(draws(),
                                           std::vector<float>(heads * static_cast<std::size_t>(mixer.value_dim)));
    std::vector<HistoryBuffers> buffers;
    for (std::size_t draw = 0; draw < draws(); ++draw) buffers.push_back({keys[draw], values[draw]});
    if (layer == 0) kept_[s].push_back(embedded(s));
    decoder_.pull_back(*whole.weights, whole.experts, *kept_[s].back(), gradients_[s], question_.windows, buffers);
    kept_[s].pop_back();
    if (!attends) return;
    for (const HistoryBuffers& found : buffers) hook(layer, s, found.key, found.value);
  }

  void finish_layer() {
    decoder_.finish();  // or the weights would go while a GPU computes with them
    const std::int64_t back = config_.num_layers - config_.cache_layers().front();
    status_.progress("layers there and back", ++done_, config_.num_layers + back);
  }

  const Decoder& decoder_;
  const ModelConfig& config_;
  const HistoryQuestion& question_;
  Status& status_;
  int at_once_;
  // By sequence: where it stands on the way forward; what is kept of the states before each layer that no gradient has
  // passed yet, but the first; gradients by draw.
  std::vector<std::unique_ptr<Rows>> states_;
  std::vector<std::vector<std::unique_ptr<Rows>>> kept_, gradients_;
  std::int64_t done_ = 0;
  std::future<WholeLayer> next_;  // is the last member, since loading uses the others
};

}  // namespace

std::unique_ptr<Decoder> make_decoder(const ModelConfig& config, const WeightStore& weights,
                                      const DecoderOptions& options) {
  using Factory = Decoder* (*)(const ModelConfig&, const WeightStore&, const DecoderOptions&);
  static const auto factory = reinterpret_cast<Factory>(torch_plugin_symbol("model_decoder", "oscar_make_decoder"));
  return std::unique_ptr<Decoder>(factory(config, weights, options));
}

std::optional<Rotary> rotary_of(const MixerSpec& mixer) {
  const RopeSpec& rope = mixer.rope;
  if (rope.dim == 0) return std::nullopt;
  Rotary rotary;
  rotary.pairs = rotary_pairs(mixer.head_dim, rope.dim, rope.interleaved && !rope.split_pairs);
  rotary.frequency = inverse_frequencies(rope, 0);
  if (rope.type == "longrope") {
    rotary.near_context = static_cast<std::int64_t>(rope.original_context);
    rotary.far_frequency = inverse_frequencies(rope, rotary.near_context + 1);
  }
  for (std::vector<float>* each : {&rotary.frequency, &rotary.far_frequency}) {
    if (!each->empty()) each->resize(static_cast<std::size_t>(mixer.head_dim / 2));  // the others do not turn
  }
  return rotary;
}

std::string why_not_before_rope(const MixerSpec& mixer) {
  return mixer.rope.dim > 0 && mixer.norm_after_rope ? "keys are normed behind RoPE" : mixer.rope.irregular;
}

namespace {

class Runner : public ModelRunner {
 public:
  Runner(const std::filesystem::path& model, const DecoderOptions& options)
      : config_(read_model_config(model)),
        checkpoint_(open_checkpoint(model)),
        decoder_(open_decoder(model, options)) {}

  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] ScoreRule score_rule(int layer) const override {
    const MixerSpec& m = config_.block(layer).mixer;
    ScoreRule rule{m.soft_cap, m.window, {}};
    if (!m.sinks) return rule;
    const std::vector<double> sinks = checkpoint_->load(layer_weight_name(layer, "self_attn.sinks")).to_doubles();
    rule.sinks.assign(sinks.begin(), sinks.end());
    return rule;
  }
  [[nodiscard]] std::string description() const override { return decoder_->description(); }
  [[nodiscard]] std::shared_ptr<std::byte> host_memory(std::size_t bytes) const override {
    return decoder_->host_memory(bytes);
  }
  [[nodiscard]] bool keeps_host_memory() const override { return decoder_->is_gpu(); }

  [[nodiscard]] std::unique_ptr<ModelPass> begin(std::span<const TokenSequence> sequences, const PassOptions& options,
                                                 Status& status) override {
    if (!options.prepare) checkpoint_->keep_reads();  // run(), for each of several methods
    for (const std::string& text : std::exchange(untold_, {})) status.warning(text);
    return std::make_unique<Pass>(*decoder_, *checkpoint_, config_, sequences, options, status);
  }

  void history_gradients(const HistoryQuestion& question, const HistoryHook& hook, Status& status) override {
    check_sequences(question.sequences, question.first_positions, config_);
    require_head(config_);
    checkpoint_->keep_reads();
    take_gradients(*decoder_, config_, question, hook, status);
  }

 private:
  [[nodiscard]] std::unique_ptr<Decoder> open_decoder(const std::filesystem::path& model,
                                                      const DecoderOptions& options) {
    settle_layouts(config_, *checkpoint_);
    untold_ = config_.notices;
    check_weights(config_, *checkpoint_, model.string());
    config_.identity.weights_sha256 = weights_sha256(config_, *checkpoint_);
    return make_decoder(config_, *checkpoint_, options);
  }

  ModelConfig config_;
  std::unique_ptr<const Checkpoint> checkpoint_;
  std::vector<std::string> untold_;  // notices
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace

void for_each_logits(const FinalStates& states, std::span<const TokenSequence> sequences, int vocab_size,
                     const LogitsHook& hook) {
  parallel_for(
      sequences.size(),
      [&](std::size_t s) {
        throw_if_interrupted();
        std::vector<float> logits(sequences[s].size() * static_cast<std::size_t>(vocab_size));
        states.logits(s, logits);
        hook(s, logits);
      },
      states.concurrent_calls());
}

void ModelRunner::run(std::span<const TokenSequence> sequences, const RunHooks& hooks, Status& status) {
  if (hooks.logits || hooks.final_states) require_head(config());
  const std::unique_ptr<ModelPass> pass = begin(sequences, {.layers = config().num_layers}, status);
  for (int layer = 0; layer < config().num_layers; ++layer) {
    pass->step(hooks.attention, !hooks.logits && !hooks.final_states && layer + 1 == config().num_layers);
    if (hooks.layer_done) hooks.layer_done(layer);
  }
  if (!hooks.logits && !hooks.final_states) return;
  std::unique_ptr<FinalStates> states = pass->final_states();
  if (hooks.logits) for_each_logits(*states, sequences, config().vocab_size, hooks.logits);
  if (hooks.final_states) hooks.final_states(std::move(states));
}

std::unique_ptr<ModelRunner> open_model(const std::filesystem::path& model, const DecoderOptions& options) {
  return std::make_unique<Runner>(model, options);
}

std::vector<float> draws_for(std::size_t sample, std::size_t tokens) {
  std::mt19937_64 random(sample);
  std::vector<float> draws(tokens);
  for (float& draw : draws) draw = static_cast<float>(random() >> 40U) * 0x1p-24F;
  return draws;
}

void take_gradients(const Decoder& decoder, const ModelConfig& config, const HistoryQuestion& question,
                    const HistoryHook& hook, Status& status) {
  GradientRun run(decoder, config, question, status);
  run.go_forward();
  run.go_back(hook);
}

}  // namespace oscar
