// SPDX-License-Identifier: MIT
#include "model_judge.hpp"

#include <cmath>

#include "fit/held_out.hpp"
#include "verify/methods.hpp"
#include "verify/predictions/model_metrics.hpp"
#include "verify/predictions/probes.hpp"

namespace oscar {
namespace {

/// Of held-out text that a model reads once for each finalist.
constexpr std::int64_t kJudgedTokens = 8192;

verify::ModelData judged_data(const std::vector<TokenSequence>& sequences, const FitOptions& options) {
  const HeldOutSplit split(static_cast<std::int64_t>(sequences.size()));
  std::vector<TokenSequence> held_out, others;
  for (std::size_t i = 0; i < sequences.size(); ++i) (split.held_out(i) ? held_out : others).push_back(sequences[i]);
  const verify::ProbeOptions probe_options{.first = options.windows.sink,
                                           .distance = options.windows.recent + std::int64_t{64},
                                           .seed = options.clip_fit.seed};
  verify::Probes probes = verify::make_probes(held_out, others, probe_options);
  verify::ModelData data;
  std::int64_t tokens = 0;
  for (TokenSequence& text : held_out) {
    if (tokens >= kJudgedTokens) break;
    if (text.size() < 2) continue;
    tokens += static_cast<std::int64_t>(text.size());
    data.texts.push_back(std::move(text));
  }
  data.needles = std::move(probes.sequences);
  data.answer_lengths = std::move(probes.answer_lengths);
  return data;
}

}  // namespace

MethodJudge make_method_judge(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                              const FitOptions& options, Backend& backend) {
  return [&runner, &backend, data = judged_data(sequences, options)](std::span<const KvMethod> methods) {
    Status quiet;
    std::vector<ModelScore> scores;
    double asked = 0;
    for (const int length : data.answer_lengths) asked += length - 1;
    const std::vector<KvMethod> caches(methods.begin(), methods.end());
    for (const ModelMetrics& metrics :
         verify::measure_model(runner, data, caches, Precision::kServing, backend, quiet)) {
      // As if tokens were independent, and with one more found and one more missed, or a perfect score had no error.
      const double share = (metrics.answer_tokens * asked + 1) / (asked + 2);
      scores.push_back({metrics.kld_mean, metrics.answer_tokens, std::sqrt(share * (1 - share) / (asked + 2))});
    }
    return scores;
  };
}

ModelJudge make_model_judge(ModelRunner& runner, const std::vector<TokenSequence>& sequences, const FitOptions& options,
                            Backend& backend) {
  return [judge = make_method_judge(runner, sequences, options, backend),
          windows = options.windows](std::span<const RotationSet> sets) {
    std::vector<KvMethod> methods;
    for (const RotationSet& set : sets) methods.push_back(verify::method_of_set(set, windows));
    return judge(methods);
  };
}

}  // namespace oscar
