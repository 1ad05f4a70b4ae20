// SPDX-License-Identifier: MIT
// What the search over the layers of a source does with its candidates besides keeping them.
#pragma once

#include <vector>

#include "fit/layer_fit.hpp"
#include "fit/recipe_search.hpp"

namespace oscar {

/// The pooled score of each codec on the held-out sequences of a layer.
[[nodiscard]] std::vector<AttentionScore> score_layer(const std::vector<SampledSequence>& judged,
                                                      const LayerRotation& layer,
                                                      const std::vector<HistoryCodecs>& codecs, Windows windows,
                                                      Backend& backend);

/// What transforms and clip ratios are fitted on.
struct Fitting {
  LayerMoments moments;
  std::vector<SampledSequence> refine, clip;
};

/// The transforms of layers by one recipe, refined if it says so; key_codec: see refine_keys().
[[nodiscard]] std::vector<LayerRotation> fit_candidate(const Recipe& recipe, const std::vector<const Fitting*>& data,
                                                       const RowCodec& key_codec, const RefineOptions& refining,
                                                       Backend& backend, Status& status);

/// Those with the lowest mean softmax KL of the candidates that can be refined, refined; `count` at most. scored: by
/// candidate.
[[nodiscard]] std::vector<Candidate> refined_best(const std::vector<Scored>& scored,
                                                  const std::vector<Candidate>& candidates, std::size_t count);

/// Half of the steps, keys and queries.
[[nodiscard]] RefineOptions lighter(RefineOptions options);

/// Each layer's scores, and where its transform comes from.
void record(const std::vector<Scored>& scored, const Scored& chosen, const std::vector<Candidate>& candidates,
            std::vector<LayerRotation>& layers);

}  // namespace oscar
