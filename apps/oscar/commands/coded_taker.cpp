// SPDX-License-Identifier: MIT
// What oscar fit --recipe coded asks a model and takes from data.

#include <algorithm>
#include <set>

#include "commands/fit_command.hpp"
#include "fit/coded_data.hpp"
#include "verify/attention/measure_source.hpp"
#include "verify/attention/method_attention.hpp"
#include "verify/verdict/quantised.hpp"

namespace oscar {
namespace {

/// On how much text it is asked what errors cost: at most so many tokens of each text.
struct CostPlan {
  std::size_t texts, tokens;
};
constexpr CostPlan kCostOnGpu{16, 2048}, kCostOnCpu{8, 2048};
/// Of fewer texts tokens are drawn more often, so that there are so many samples: with fewer, plans depend on chance.
constexpr std::size_t kCostSamples = 16;

/// Some of the sequences that are at least half as long as the longest, from all over the data and cut short, since
/// neighbours are often of one kind. Throws DataError if the windows hold nearly all of them.
std::vector<TokenSequence> cost_texts(std::vector<TokenSequence> sequences, const CostPlan& plan, Windows windows) {
  for (TokenSequence& text : sequences) text.resize(std::min(text.size(), plan.tokens));
  std::ranges::stable_sort(sequences, std::greater<>(), &TokenSequence::size);
  const auto enough = static_cast<std::size_t>(std::ranges::count_if(
      sequences, [&](const TokenSequence& text) { return 2 * text.size() >= sequences.front().size(); }));
  std::vector<TokenSequence> texts;
  for (std::size_t i = 0, count = std::min(plan.texts, enough); i < count; ++i) {
    texts.push_back(std::move(sequences[(2 * i + 1) * enough / (2 * count)]));
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

class CodedTaker {
 public:
  /// more: CodedOptions::more. All others must outlive this. Throws DataError for texts that the windows hold nearly
  /// all of.
  CodedTaker(const FitCommand& command, FitInput& input, Backend& backend, Status& status, std::set<Moment> more)
      : command_(command),
        input_(input),
        backend_(backend),
        status_(status),
        options_{.windows = command.fit.windows, .more = std::move(more)} {
    choose_what_to_ask();
  }

  /// Returns all that decides what is taken, with fingerprints.
  [[nodiscard]] Json record();
  /// Asks the model what errors cost, in all layers; empty for a dump.
  [[nodiscard]] ErrorCosts costs();
  [[nodiscard]] CodedData take(const ErrorCosts& costs, const PartialFolder* kept);

 private:
  void choose_what_to_ask();

  const FitCommand& command_;
  FitInput& input_;
  Backend& backend_;
  Status& status_;
  CodedOptions options_;
  std::vector<TokenSequence> texts_;  // about which the model is asked; none of a dump
};

void CodedTaker::choose_what_to_ask() {
  const bool live = input_.runner() != nullptr;
  if (live) {
    const bool gpu = !backend_.description().starts_with("cpu");
    texts_ = cost_texts(input_.sequences(), gpu ? kCostOnGpu : kCostOnCpu, options_.windows);
    options_.uncentred = layers_that_feel_shifts(*input_.runner());
  } else {
    status_.notice("a dump does not tell what errors cost the model: bits follow errors of attention outputs");
  }
  options_.recipe = {{"plain_part", live ? kPlainCostPart : kPlainQueryPart},
                     {"sample_rows", options_.sample_rows},
                     {"damage", live ? "model KL" : "attention output error"},
                     {"damage_tokens", describe(texts_).tokens}};
  if (live) options_.recipe["context"] = input_.context();
}

Json CodedTaker::record() {
  return with_fingerprints(describe_coded_data(input_.source(), options_.windows, options_.recipe), input_, command_);
}

ErrorCosts CodedTaker::costs() {
  if (texts_.empty()) return {};
  const auto draws = static_cast<int>((kCostSamples + texts_.size() - 1) / texts_.size());
  const HistoryQuestion question{texts_, spread_over(input_.context(), texts_), options_.windows, draws};
  return error_costs(*input_.runner(), question, input_.source().layer_ids(), backend_, status_);
}

CodedData CodedTaker::take(const ErrorCosts& costs, const PartialFolder* kept) {
  const auto measure = [this](const CodedSet& set) {
    return verify::measure_attention_damage(input_.source(), set, backend_);
  };
  return take_coded_data(input_.source(), options_, costs, measure, kept, backend_, status_);
}

}  // namespace

std::filesystem::path coded_partial_folder(const FitCommand& command) {
  return command.save_stats.empty() ? partial_folder(command) : statistics_folder(command);
}

CodedData coded_data_of(const FitCommand& command, FitInput& input, Backend& backend, Status& status,
                        const std::set<Moment>& more) {
  CodedTaker taker(command, input, backend, status, more);
  if (!command.resume) return taker.take(taker.costs(), nullptr);
  const PartialFolder kept(coded_partial_folder(command), taker.record(), PartialFolder::Earlier::kUse, &status);
  input.keep_states(kept);
  return taker.take(kept_costs(kept, [&] { return taker.costs(); }), &kept);
}

}  // namespace oscar
