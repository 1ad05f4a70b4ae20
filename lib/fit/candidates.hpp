// SPDX-License-Identifier: MIT
// The candidates of a search, once they are fitted: how each layer is scored, and which of them compete once more,
// refined.
#pragma once

#include <vector>

#include "fit/search.hpp"

namespace oscar {

/// Returns the pooled score of each codec on the held-out sequences of a layer.
[[nodiscard]] std::vector<AttentionScore> score_layer(const std::vector<SampledSequence>& judged,
                                                      const LayerRotation& layer,
                                                      const std::vector<HistoryCodecs>& codecs, Windows windows,
                                                      Backend& backend);

/// Returns those with the lowest mean softmax KL of the candidates that can be refined, refined; `count` at most.
/// scored: by candidate.
[[nodiscard]] std::vector<Candidate> refined_best(const std::vector<Scored>& scored,
                                                  const std::vector<Candidate>& candidates, std::size_t count);

/// Returns the options with half of the steps, keys and queries.
[[nodiscard]] RefineOptions lighter(RefineOptions options);

/// Writes into each layer its scores and where its transform comes from.
void record(const std::vector<Scored>& scored, const Scored& chosen, const std::vector<Candidate>& candidates,
            std::vector<LayerRotation>& layers);

}  // namespace oscar
