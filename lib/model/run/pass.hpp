// SPDX-License-Identifier: MIT
// One run of a checkpoint, for runner.cpp: the order of layers, sequences and experts, and what is loaded meanwhile. A
// Pass owns the hidden states, and LayerExperts adds to them what experts do: which of them are loaded when, and in
// which order sequences meet them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "model/run/decoder.hpp"
#include "model/run/runner.hpp"
#include "model/weights/checkpoint.hpp"

namespace oscar {

/// The experts of one layer on their way to memory.
class ExpertLoader;

class LayerExperts {
 public:
  /// Holds the hidden states of sequences that experts see together.
  using Unit = std::span<const std::unique_ptr<Rows>>;
  /// Calls a task with 0, 1, … count - 1, in parallel.
  using ForEach = std::function<void(std::size_t count, const std::function<void(std::size_t)>& task)>;

  /// layers: those that the pass runs; tokens: those of all its sequences. Both references must outlive it.
  LayerExperts(const Decoder& decoder, const ModelConfig& config, int layers, std::int64_t tokens);
  ~LayerExperts();

  /// Starts to load what need not wait for the choice of experts: those of `layer` if its experts will run, else those
  /// of the next layer.
  void load_early(int layer, bool will_run);
  /// Takes one unit through the first experts of `layer` for nothing, as a GPU loads kernels on first use.
  void try_out(int layer, const LoadedWeights& weights, Unit unit);
  /// Adds to each unit what its experts give. Each expert is in memory once, for a while: all units meet one group of
  /// experts before the next. done(i, n): i of n groups are through.
  void run(int layer, const LoadedWeights& weights, std::span<const Unit> units, const ForEach& for_each,
           const std::function<void(std::size_t, std::size_t)>& done);
  /// Makes the experts of the next layer, which run() may have begun to load, those of the current one. The weights
  /// that run() computed with may go once this was called.
  void next_layer();
  /// Forgets what was loaded ahead.
  void drop();

 private:
  /// Returns null where it is not yet known which experts are needed.
  [[nodiscard]] std::unique_ptr<ExpertLoader> load_all(int layer) const;

  const Decoder& decoder_;
  const ModelConfig& config_;
  int layers_;
  std::int64_t tokens_;
  std::unique_ptr<ExpertLoader> current_, ahead_;
};

/// Throws DataError for sequences that the model cannot take (ModelRunner::begin).
void check_sequences(std::span<const TokenSequence> sequences, std::span<const std::int64_t> first_positions,
                     const ModelConfig& config);

/// The hidden state of every sequence, between layers. On the CPU, sequences are the units of parallel work: each is
/// computed by one thread in the same way, whatever the number of threads. On a GPU, experts see some sequences
/// together, always the same ones. All references must outlive it.
class Pass : public ModelPass {
 public:
  Pass(Decoder& decoder, const Checkpoint& checkpoint, const ModelConfig& config,
       std::span<const TokenSequence> sequences, const PassOptions& options, Status& status);
  ~Pass() override;
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  [[nodiscard]] int layer() const override { return layer_; }
  void step(const AttentionHook& attention, bool observe_only) override;
  void capture(const CaptureHook& target, bool observe_only) override;
  void save(const std::filesystem::path& path) const override;
  void restore(const std::filesystem::path& path) override;
  void wait_until_ready() override;
  [[nodiscard]] std::unique_ptr<FinalStates> final_states() override;

 private:
  using Mixer = std::function<void(std::size_t sequence, const LoadedWeights& weights)>;
  /// Sequences [begin, end), which experts see together.
  struct Unit {
    std::size_t begin, end;
  };

  [[nodiscard]] std::int64_t first_position(std::size_t s) const {
    return first_positions_.empty() ? 0 : first_positions_[s];
  }
  void choose_units();
  void prepare();
  void in_parallel(std::size_t count, const std::function<void(std::size_t)>& task, int at_once) const;
  void tell_progress(std::int64_t tokens);
  [[nodiscard]] const BlockSpec& block() const { return config_.block(layer_); }
  void start_loading(int layer);
  void run_layer(const Mixer& mix, bool observe_only, int at_once);
  /// Adds exact attention, unless the pass only observes. Returns q, k and v, of which a copy is under way if one is
  /// wanted; null if nobody needs them.
  std::unique_ptr<Rows> attend(std::size_t s, const LoadedWeights& weights, const std::optional<QkvBuffers>& copy,
                               bool observe_only);
  void attend_with_hook(std::size_t s, const LoadedWeights& weights, const AttentionHook& attention, bool observe_only);

  [[nodiscard]] LayerExperts::Unit hidden_of(const Unit& unit) const {
    return std::span(hidden_).subspan(unit.begin, unit.end - unit.begin);
  }
  void run_experts(const LoadedWeights& weights);

  Decoder& decoder_;
  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  std::span<const TokenSequence> sequences_;
  std::int64_t tokens_ = 0;
  int layers_;  // to run
  std::vector<std::int64_t> first_positions_;
  Status& status_;
  std::vector<Unit> units_;
  std::vector<std::unique_ptr<Rows>> hidden_;
  int layer_ = 0;
  bool ended_ = false;
  std::optional<LayerExperts> experts_;
  std::shared_future<std::shared_ptr<const LoadedWeights>> next_;  // of the layer that runs next
  std::future<void> preparing_;                                    // last, since it uses the others
};

// A gradient's way from what a model predicts back to the caches of its layers; for runner.cpp.

/// Returns the numbers in [0, 1) by which a token is drawn at each position, the same on every machine. sample: the
/// number of the sequence; in a later draw, behind those of the draws before.
[[nodiscard]] std::vector<float> draws_for(std::size_t sample, std::size_t tokens);

/// Does what ModelRunner::history_gradients() says, for sequences that were checked.
void take_gradients(const Decoder& decoder, const ModelConfig& config, const HistoryQuestion& question,
                    const HistoryHook& hook, Status& status);

}  // namespace oscar
