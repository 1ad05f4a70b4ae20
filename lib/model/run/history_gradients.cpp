// SPDX-License-Identifier: MIT
#include <future>
#include <numeric>
#include <random>

#include "base/threads.hpp"
#include "model/run/pass.hpp"

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
