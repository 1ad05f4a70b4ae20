// SPDX-License-Identifier: MIT
#include "fit/candidates.hpp"

#include <algorithm>

#include "method/clip.hpp"

namespace oscar {

std::vector<AttentionScore> score_layer(const std::vector<SampledSequence>& judged, const LayerRotation& layer,
                                        const std::vector<HistoryCodecs>& codecs, Windows windows, Backend& backend) {
  const auto errors = compare_on_sample(judged, layer.key, layer.value, codecs, windows, backend);
  std::vector<AttentionScore> scores;
  for (const AttentionErrors& sum : errors) {
    scores.push_back({sum.softmax_kl / static_cast<double>(std::max<std::int64_t>(sum.queries, 1)),
                      sum.output_error / std::max(sum.output_norm, 1e-300)});
  }
  return scores;
}

std::vector<Candidate> refined_best(const std::vector<Scored>& scored, const std::vector<Candidate>& candidates,
                                    std::size_t count) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (candidates[i].recipe.kind != Recipe::Kind::kHadamard) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return scored[a].mean().softmax_kl < scored[b].mean().softmax_kl;
  });
  order.resize(std::min(order.size(), count));
  std::vector<Candidate> refined;
  for (const std::size_t i : order) {
    FitOptions options = candidates[i].options;
    options.refine = true;
    refined.push_back({"refined " + candidates[i].name, options, resolve_recipe(options)});
  }
  return refined;
}

RefineOptions lighter(RefineOptions options) {
  options.steps /= 2;
  options.sample.sample_tokens /= 2;
  options.sample.query_rows /= 2;
  options.sample.max_sequence_tokens = std::min(options.sample.max_sequence_tokens, options.sample.sample_tokens / 2);
  return options;
}

void record(const std::vector<Scored>& scored, const Scored& chosen, const std::vector<Candidate>& candidates,
            std::vector<LayerRotation>& layers) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Json scores = Json::object();
    for (const Scored& each : scored) {
      scores[each.name] = {{"softmax_kl", each.layers[i].softmax_kl},
                           {"output_rel_error", each.layers[i].output_rel_error}};
    }
    layers[i].key.scores["search"] = {{"choice", candidates[chosen.candidate_of_layer[i]].name},
                                      {"candidates", std::move(scores)}};
  }
}

}  // namespace oscar
