// SPDX-License-Identifier: MIT
// What errors of keys and values cost a model, and on which texts it is asked.
#pragma once

#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "fit/partial_folder.hpp"
#include "kernels/backend.hpp"
#include "model/run/runner.hpp"
#include "moments/statistics.hpp"

namespace oscar {

/// What errors cost, by layer; empty where nobody knows.
using ErrorCosts = std::map<int, ErrorCost>;

/// Returns the cost in each of `layers`, which have caches. Layers that read another's cache add to that one's, as if
/// what they read of a row had nothing to do with each other. Of layers that `before_rope` has, it is the cost of
/// errors of keys before RoPE. The bytes do not depend on the number of threads.
[[nodiscard]] ErrorCosts error_costs(ModelRunner& runner, const HistoryQuestion& question, std::span<const int> layers,
                                     const std::map<int, Rotary>& before_rope, Backend& backend, Status& status);

/// Returns some of the sequences that are at least half as long as the longest, from all over the data and cut short,
/// since neighbours are often of one kind. gpu: whether there is time for more. Throws DataError if the windows hold
/// nearly all of them.
[[nodiscard]] std::vector<TokenSequence> cost_texts(std::vector<TokenSequence> sequences, bool gpu, Windows windows);

/// Returns the cost on these texts, spread over the positions of a context; `kept`: where they are kept, or were, by a
/// file that PartialFolder checks and takes away as it does layers; or null.
[[nodiscard]] ErrorCosts costs_on(const std::vector<TokenSequence>& texts, int context,
                                  const std::map<int, Rotary>& before_rope, Windows windows, ModelRunner& runner,
                                  std::span<const int> layers, const PartialFolder* kept, Backend& backend,
                                  Status& status);

/// Returns the layers whose softmax has sinks, or whose scores are capped.
[[nodiscard]] std::set<int> layers_that_feel_shifts(const ModelRunner& runner);

}  // namespace oscar
