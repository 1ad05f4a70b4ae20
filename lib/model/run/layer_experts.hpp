// SPDX-License-Identifier: MIT
// What experts add to the hidden states of a pass: which of them are loaded when, and in which order sequences meet
// them. pass.hpp owns the hidden states.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "model/run/decoder.hpp"

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

}  // namespace oscar
