// SPDX-License-Identifier: MIT
// A running model as a QkvSource: nothing is dumped. Opening a layer takes the model through the layers up to it and
// keeps that layer's q, k and v in memory, rounded to the type that a dump would have: a live fit equals a fit on the
// dump. The model itself goes on with unrounded rows. Layers open once each, in ascending order. Memory: one layer of
// q, k, v, and the hidden states of all sequences.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "model/run/runner.hpp"

namespace oscar {

struct LiveOptions {
  /// float32, bfloat16 or float16; "auto" = the checkpoint's own.
  std::string dtype = "auto";
  /// The layers that are opened; empty: those whose cache grows with the whole text (config.hpp).
  std::vector<int> layers;
  /// Sequences share a chunk until it has this many tokens; a longer sequence has a chunk of its own.
  std::int64_t chunk_tokens = 8192;
  /// Positions of the first token of each sequence (PassOptions); empty: 0.
  std::vector<std::int64_t> first_positions;
  /// The pass goes on behind the last layer that opens, for final_states().
  bool to_the_end = false;
};

class LiveSource : public QkvSource {
 public:
  /// Keeps hidden states in a folder, and goes on with those that lie there. Called before the first
  /// open().
  virtual void keep_states(const std::filesystem::path& folder, std::function<bool(int layer)> is_kept) = 0;
  /// Waits until the model can take its first layer at full speed. Throws what loading throws.
  virtual void wait_until_ready() = 0;
  /// Takes the model through the layers that are left, and returns what is behind the last: the bits of a run that
  /// captures nothing. Called once, after all layers were opened, of a source that goes `to_the_end`.
  [[nodiscard]] virtual std::unique_ptr<FinalStates> final_states() = 0;
};

/// `runner` and `status` must outlive the source. Throws UsageError for a layer that the model does not have or that
/// keeps no cache, DataError for sequences that it cannot take (runner.hpp) and, while a layer opens, for values that
/// are not finite in the chosen type.
[[nodiscard]] std::unique_ptr<LiveSource> open_live(ModelRunner& runner, std::vector<TokenSequence> sequences,
                                                    const LiveOptions& options, Status& status);

}  // namespace oscar
