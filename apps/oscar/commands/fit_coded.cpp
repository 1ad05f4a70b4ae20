// SPDX-License-Identifier: MIT
// oscar fit --recipe coded; and recipe auto where the target can read the coded cache, too: the model then judges one
// of each kind, both fitted to the same sums over the same rows. Only if the coded cache does not win are other
// rotation sets fitted.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <set>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "measure/set_method.hpp"
#include "set/coded_part.hpp"
#include "commands/fit_command.hpp"
#include "fit/coded_data.hpp"
#include "fit/fit.hpp"
#include "measure/attention/attention_metrics.hpp"
#include "verify/measure_source.hpp"
#include "verify/methods.hpp"
#include "verify/verdict/measured_text.hpp"

namespace oscar {
namespace {

using Clock = std::chrono::steady_clock;

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
  const ModelData data{.texts = texts};
  require_quantised(keys_of_texts(data, windows), "what errors cost", "--text, --tokens", windows);
  return texts;
}

/// Layers whose softmax has sinks, or whose scores are capped.
std::set<int> layers_that_feel_shifts(const ModelRunner& runner) {
  std::set<int> layers;
  for (const auto& [layer, rule] : rules_of(runner)) {
    if (!rule.ignores_shifts()) layers.insert(layer);
  }
  return layers;
}

/// What recipe coded asks a model and takes from data; with --resume it is kept, and what is there already is not taken
/// again. more: CodedOptions::more. Throws DataError for texts that the windows hold nearly all of.
CodedData coded_data_of(const FitCommand& command, FitInput& input, Backend& backend, Status& status,
                        std::set<Moment> more = {}) {
  CodedOptions options{.windows = command.fit.windows, .more = std::move(more)};
  std::vector<TokenSequence> texts;  // about which the model is asked; none of a dump
  const bool live = input.runner() != nullptr;
  if (live) {
    const bool gpu = !backend.description().starts_with("cpu");
    texts = cost_texts(input.sequences(), gpu ? kCostOnGpu : kCostOnCpu, options.windows);
    options.uncentred = layers_that_feel_shifts(*input.runner());
  } else {
    status.notice("a dump does not tell what errors cost the model: bits follow errors of attention outputs");
  }
  options.recipe = {{"plain_part", live ? kPlainCostPart : kPlainQueryPart},
                    {"sample_rows", options.sample_rows},
                    {"damage", live ? "model KL" : "attention output error"},
                    {"damage_tokens", describe(texts).tokens}};
  if (live) options.recipe["context"] = input.context();
  const auto ask_for_costs = [&]() -> ErrorCosts {
    if (texts.empty()) return {};
    const auto draws = static_cast<int>((kCostSamples + texts.size() - 1) / texts.size());
    const HistoryQuestion question{texts, spread_over(input.context(), texts), options.windows, draws};
    return error_costs(*input.runner(), question, input.source().layer_ids(), backend, status);
  };
  const auto take = [&](const ErrorCosts& costs, const PartialFolder* kept) {
    const auto measure = [&](const CodedPart& set) {
      return measure_attention_damage(input.source(), set, backend);
    };
    return take_coded_data(input.source(), options, costs, measure, kept, backend, status);
  };
  if (!command.resume) return take(ask_for_costs(), nullptr);
  const Json record = describe_coded_data(input.source(), options.windows, options.recipe);
  const PartialFolder kept(command.partial_folder(), input.with_fingerprints(record), PartialFolder::Earlier::kUse,
                           &status);
  input.keep_states(kept);
  return take(kept_costs(kept, ask_for_costs), &kept);
}

CodedPart coded_set_of(const FitCommand& command, const CodedData& data, Backend& backend) {
  CodedPart set = fit_coded(data, command.fit.bits, coded_scope_from_name(command.fit.scope), backend);
  set.recipe = {{"name", "coded"}, {"target", command.fit.target}};
  set.recipe.update(data.recipe);
  return set;
}

Json to_json(const CodedPart& set, const std::filesystem::path& out, double seconds) {
  Json layers = Json::array();
  for (const CodedLayer& layer : set.layers) {
    layers.push_back({{"layer_id", layer.layer_id},
                      {"key_bits", bits_of(layer.key)},
                      {"value_bits", bits_of(layer.value)},
                      {"key_damage", layer.key.damage},
                      {"value_damage", layer.value.damage}});
  }
  return {{"rotation_set", out.string()},
          {"recipe", set.recipe},
          {"bits", bits_of(set)},
          {"tokens", set.calibration.tokens},
          {"sequences", set.calibration.sequences},
          {"layers", std::move(layers)},
          {"seconds", {{"fit", seconds}}}};
}

/// Writes the set, and tells people and --json.
void finish(const FitCommand& command, const CodedPart& set, Clock::time_point started, const Backend& backend,
            Context& context) {
  const double seconds = seconds_since(started);
  write_coded_set(command.out, set, command.force);
  context.status->notice(fmt::format("fitted {} on {} in {:.2f} s: {:.3f} bits a value, {}",
                                     plural(static_cast<std::int64_t>(set.layers.size()), "layer"),
                                     plural(set.calibration.tokens, "token"), seconds, bits_of(set),
                                     backend.description()));
  context.status->notice("wrote " + command.out.string());
  emit_json(context, to_json(set, command.out, seconds));
}

/// The rotation set that the coded cache is judged against: of what the search tries, the best on the models that were
/// measured (tests/bench/README.md).
constexpr const char* kRivalName = "stretch fisher, centred";
FitOptions rival_of(const FitOptions& options) {
  FitOptions rival = options;
  rival.recipe = "stretch", rival.key_objective = "fisher", rival.center = true;
  return rival;
}

/// Returns the sums that the coded fit took, as statistics that a rotation set can be fitted to.
Statistics statistics_of(const CodedData& data) {
  Statistics statistics{.model = data.model, .data = data.data, .windows = data.windows};
  for (const CodedLayerData& layer : data.layers) statistics.layers.push_back(layer.sums);
  statistics.query_moments_sha256 = query_moments_sha256(statistics);
  return statistics;
}

}  // namespace

void fit_coded_set(const FitCommand& command, Context& context) {
  if (!command.save_stats.empty()) require_replaceable_statistics(command, is_coded_data);
  const std::unique_ptr<Backend> backend = start_backend(context);
  const auto started = Clock::now();
  const CodedData data = [&] {
    if (!command.stats.empty()) return read_coded_data(command.stats);
    FitInput input(command, context);
    input.wait_until_ready();
    return coded_data_of(command, input, *backend, *context.status);
  }();
  if (!command.save_stats.empty()) {
    write_coded_data(command.save_stats, data);
    report_statistics(command, data.layers.size(), data.data, seconds_since(started), context);
  }
  if (!command.out.empty()) finish(command, coded_set_of(command, data, *backend), started, *backend, context);
  if (command.resume) PartialFolder::remove(command.partial_folder());
}

bool fit_coded_if_best(const FitCommand& command, std::vector<TokenSequence>& sequences, Context& context) {
  Status& status = *context.status;
  const auto started = Clock::now();
  FitCommand coded = command;
  coded.fit.recipe = "coded";
  const std::unique_ptr<Backend> backend = start_backend(context);
  FitInput input(coded, context);
  sequences = input.sequences();
  const auto search = [&](const std::string& why) {
    status.notice("recipe auto leaves the coded cache out: " + why);
    return false;
  };
  if (const std::string why = input.why_not_judged(); !why.empty()) return search(why);
  const FitOptions rival_options = rival_of(command.fit);
  CodedPart set;
  RotationPart rival;
  try {
    (void)HeldOutSplit(static_cast<std::int64_t>(sequences.size()));
    input.wait_until_ready();
    const CodedData data = coded_data_of(coded, input, *backend, status, recipe_of_sums(rival_options).moments());
    set = coded_set_of(coded, data, *backend);
    rival = fit(statistics_of(data), rival_options, *backend, status).set;
  } catch (const DataError& error) {  // too little text to judge or to plan by, or heads that do not fit
    return search(error.what());
  }
  const std::array methods{method_of(set, command.fit.windows),
                           method_of(rival, command.fit.windows)};
  const std::vector<double> kld = input.judge_by_kl(command.fit, *backend, methods);
  const std::string reason = fmt::format("the KL of the model's predictions is {:.3g} with it, and {:.3g} with {}",
                                         kld[0], kld[1], kRivalName);
  // Not a number loses.
  if (!(kld[0] <= kld[1])) return search(reason);
  set.recipe["search"] = {
      {"choice", "coded"},
      {"reason", reason},
      {"candidates", {{{"name", "coded"}, {"model_kl", kld[0]}}, {{"name", kRivalName}, {"model_kl", kld[1]}}}}};
  status.notice("chose coded: " + reason);
  finish(command, set, started, *backend, context);
  return true;
}

}  // namespace oscar
