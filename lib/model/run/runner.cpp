// SPDX-License-Identifier: MIT
#include "model/run/runner.hpp"

#include "base/plugin.hpp"
#include "base/threads.hpp"
#include "model/run/pass.hpp"
#include "model/weights/checkpoint.hpp"
#include "model/weights/layout.hpp"

namespace oscar {

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
                     const LogitsHook& hook, const LastLogits& last) {
  parallel_for(
      sequences.size(),
      [&](std::size_t s) {
        throw_if_interrupted();
        const auto tokens = static_cast<std::int64_t>(sequences[s].size()), wanted = last ? last(s) : tokens;
        std::vector<float> logits(static_cast<std::size_t>(wanted * vocab_size));
        states.logits(s, tokens - wanted, logits);
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
  if (hooks.logits) for_each_logits(*states, sequences, config().vocab_size, hooks.logits, hooks.last_logits);
  if (hooks.final_states) hooks.final_states(std::move(states));
}

std::unique_ptr<ModelRunner> open_model(const std::filesystem::path& model, const DecoderOptions& options) {
  return std::make_unique<Runner>(model, options);
}

}  // namespace oscar
