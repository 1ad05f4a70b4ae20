// SPDX-License-Identifier: MIT
// What oscar fit --recipe coded asks a model, takes from data, and keeps for --resume.
#include <algorithm>
#include <optional>
#include <set>

#include "commands/fit_command.hpp"
#include "commands/fit_in_parts.hpp"
#include "fit/coded_partial.hpp"
#include "verify/coded_damage.hpp"
#include "verify/method_attention.hpp"
#include "verify/quantised.hpp"

namespace oscar {
namespace {

/// On how much text it is asked what errors cost: at most so many tokens of each text.
struct CostPlan {
  std::size_t texts, tokens;
};
constexpr CostPlan kCostOnGpu{16, 2048}, kCostOnCpu{8, 2048};
/// Of fewer texts tokens are drawn more often, so that there are so many samples: with fewer, plans depend on chance.
constexpr std::size_t kCostSamples = 16;

/// Some of the longest sequences, from all over the data and cut short, since neighbours are often of one kind. Throws
/// DataError if the windows hold nearly all of them.
std::vector<TokenSequence> cost_texts(std::vector<TokenSequence> sequences, const CostPlan& plan, Windows windows) {
  for (TokenSequence& text : sequences) text.resize(std::min(text.size(), plan.tokens));
  std::ranges::stable_sort(sequences, std::greater<>(), &TokenSequence::size);
  const auto longest = static_cast<std::size_t>(std::ranges::count_if(
      sequences, [&](const TokenSequence& text) { return text.size() == sequences.front().size(); }));
  std::vector<TokenSequence> texts;
  for (std::size_t i = 0, count = std::min(plan.texts, longest); i < count; ++i) {
    texts.push_back(std::move(sequences[(2 * i + 1) * longest / (2 * count)]));
  }
  const verify::ModelData data{.texts = texts};
  verify::require_quantised(verify::keys_of_texts(data, windows), "what errors cost", "--text, --tokens", windows);
  return texts;
}

/// Layers whose softmax has sinks, or whose scores are capped.
std::set<int> layers_that_feel_shifts(const ModelRunner& runner) {
  std::set<int> layers;
  for (const auto& [layer, rule] : verify::rules_of(runner)) {
    if (!rule.ignores_shifts()) layers.insert(layer);
  }
  return layers;
}

/// Of the model; empty for a dump.
struct CostQuestion {
  std::vector<TokenSequence> texts;
  int draws = 0;
};

CostQuestion question_of(const FitCommand& command, const FitInput& input, const Backend& backend) {
  const bool gpu = !backend.description().starts_with("cpu");
  CostQuestion question{cost_texts(input.sequences(), gpu ? kCostOnGpu : kCostOnCpu, command.fit.windows)};
  question.draws = static_cast<int>((kCostSamples + question.texts.size() - 1) / question.texts.size());
  return question;
}

Json coded_recipe(const CodedOptions& options, const CostQuestion& question, const FitInput& input) {
  const bool live = !question.texts.empty();
  Json recipe{{"plain_part", live ? kPlainCostPart : kPlainQueryPart},
              {"sample_rows", options.sample_rows},
              {"damage", live ? "model KL" : "attention output error"},
              {"damage_tokens", describe(question.texts).tokens}};
  if (live) recipe["context"] = input.context();
  return recipe;
}

}  // namespace

std::filesystem::path coded_partial_folder(const FitCommand& command) {
  return command.save_stats.empty() ? partial_folder(command) : statistics_folder(command);
}

CodedData coded_data_of(const FitCommand& command, FitInput& input, Backend& backend, Status& status) {
  CodedOptions options{.windows = command.fit.windows};
  const bool live = input.runner() != nullptr;
  if (!live) status.notice("a dump does not tell what errors cost the model: bits follow errors of attention outputs");
  const CostQuestion question = live ? question_of(command, input, backend) : CostQuestion();
  if (live) options.uncentred = layers_that_feel_shifts(*input.runner());
  options.recipe = coded_recipe(options, question, input);
  std::optional<PartialCodedData> partial;
  if (command.resume) {
    const Json record = describe_coded_data(input.source(), options.windows, options.recipe);
    partial.emplace(coded_partial_folder(command), with_fingerprints(record, input, command),
                    PartialFolder::Earlier::kUse, &status);
    input.keep_states(*partial);
  }
  const PartialCodedData* const kept = partial ? &*partial : nullptr;
  const auto ask = [&] {
    const HistoryQuestion history{question.texts, spread_over(input.context(), question.texts), options.windows,
                                  question.draws};
    return error_costs(*input.runner(), history, input.source().layer_ids(), backend, status);
  };
  std::map<int, ErrorCost> costs;
  if (live) costs = kept != nullptr ? kept->costs(ask) : ask();
  const auto measure = [&](const CodedSet& set) {
    return verify::measure_attention_damage(input.source(), set, backend);
  };
  return take_coded_data(input.source(), options, costs, measure, kept, backend, status);
}

}  // namespace oscar
