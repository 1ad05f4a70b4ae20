// SPDX-License-Identifier: MIT
// oscar fit --recipe coded
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/atomic_folder.hpp"
#include "base/clock.hpp"
#include "base/errors.hpp"
#include "base/text.hpp"
#include "coded/coded_set_file.hpp"
#include "commands/fit_command.hpp"
#include "commands/on_ranks.hpp"
#include "fit/coded_data_file.hpp"
#include "rotation/manifest.hpp"
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

void check_usage(const FitCommand& command) {
  const FitOptions& fit = command.fit;
  const auto refuse = [](bool given, const char* option, const char* why) {
    if (given) throw UsageError(std::string("recipe coded ") + why, option, "leave it out, or fit another recipe");
  };
  refuse(fit.target != "oscar" && fit.target != "any", "--target",
         "makes a cache of its own, which only oscar and any read");
  refuse(!command.dump.empty() && command.context > 0, "--context",
         "takes a dump's keys from the positions where they are");
  refuse(command.stats.size() > 1, "--stats", "takes one file, of all of the data: its sums do not add up");
  refuse(command.resume, "--resume", "starts from the beginning until now");
  refuse(find_place().has_value(), "several ranks", "is fitted by one process until now");
}

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

Json to_json(const CodedSet& set, const std::filesystem::path& out, double seconds) {
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

}  // namespace

CodedData coded_data_of(const FitCommand& command, FitInput& input, Backend& backend, Status& status) {
  CodedOptions options{.windows = command.fit.windows};
  const bool live = input.runner() != nullptr;
  if (!live) status.notice("a dump does not tell what errors cost the model: bits follow errors of attention outputs");
  std::vector<TokenSequence> texts;
  std::map<int, ErrorCost> costs;
  if (live) {
    ModelRunner& runner = *input.runner();
    const bool gpu = !backend.description().starts_with("cpu");
    texts = cost_texts(input.sequences(), gpu ? kCostOnGpu : kCostOnCpu, command.fit.windows);
    options.uncentred = layers_that_feel_shifts(runner);
    const auto draws = static_cast<int>((kCostSamples + texts.size() - 1) / texts.size());
    const HistoryQuestion question{texts, spread_over(input.context(), texts), command.fit.windows, draws};
    costs = error_costs(runner, question, input.source().layer_ids(), backend, status);
  }
  const auto measure = [&](const CodedSet& set) {
    return verify::measure_attention_damage(input.source(), set, backend, status);
  };
  CodedData data = take_coded_data(input.source(), options, costs, measure, backend, status);
  data.recipe = {{"plain_part", live ? kPlainCostPart : kPlainQueryPart},
                 {"sample_rows", options.sample_rows},
                 {"damage", live ? "model KL" : "attention output error"},
                 {"damage_tokens", describe(texts).tokens}};
  if (live) data.recipe["context"] = input.context();
  return data;
}

CodedSet coded_set_of(const FitCommand& command, const CodedData& data) {
  CodedSet set = fit_coded(data, command.fit.bits, coded_scope_from_name(command.fit.scope));
  set.recipe = {{"name", "coded"}, {"target", command.fit.target}};
  set.recipe.update(data.recipe);
  return set;
}

void write_coded_fit(const FitCommand& command, const CodedSet& set, double seconds, const Backend& backend,
                     Context& context) {
  write_coded_set(command.out, set, command.force);
  context.status->notice(fmt::format("fitted {} on {} in {:.2f} s: {:.3f} bits a value, {}",
                                     plural(static_cast<std::int64_t>(set.layers.size()), "layer"),
                                     plural(set.calibration.tokens, "token"), seconds, bits_of(set),
                                     backend.description()));
  context.status->notice("wrote " + command.out.string());
  emit_json(context, to_json(set, command.out, seconds));
}

namespace {

/// What is there may be replaced if it is such a file.
void require_coded_data_file(const FitCommand& command) {
  const std::filesystem::path& file = command.save_stats;
  if (!std::filesystem::exists(file)) return;
  const std::string option = "--save-stats " + file.string();
  if (!command.force) {
    throw UsageError("there is such a file already", option, "name another, or give --force to replace it");
  }
  try {
    if (is_coded_data(file)) return;
  } catch (const DataError&) {  // whatever it is, we did not write it
  }
  throw UsageError("refusing to replace a file that does not hold statistics for the coded cache", option,
                   "name another file, or remove it yourself");
}

CodedData take_and_save(const FitCommand& command, Backend& backend, Context& context) {
  FitInput input(command, context);
  input.wait_until_ready();
  CodedData data = coded_data_of(command, input, backend, *context.status);
  if (command.save_stats.empty()) return data;
  write_coded_data(command.save_stats, data);
  context.status->notice("wrote " + command.save_stats.string());
  return data;
}

}  // namespace

void fit_coded_set(FitCommand& command, Context& context) {
  check_usage(command);
  const bool saves = !command.save_stats.empty();
  if (command.out.empty() && !saves) throw UsageError("no folder for the set", "oscar fit", "give --out DIR");
  if (saves) require_coded_data_file(command);
  if (!command.out.empty()) {
    const AtomicFolder writable(command.out, replaceable_set(command.force));  // fails now rather than after the work
  }
  const std::unique_ptr<Backend> backend = start_backend(context);
  const auto started = std::chrono::steady_clock::now();
  const CodedData data =
      command.stats.empty() ? take_and_save(command, *backend, context) : read_coded_data(command.stats.front());
  if (command.out.empty())
    return emit_json(context, {{"statistics", command.save_stats.string()},
                               {"layers", data.layers.size()},
                               {"tokens", data.calibration.tokens},
                               {"seconds", seconds_since(started)}});
  write_coded_fit(command, coded_set_of(command, data), seconds_since(started), *backend, context);
}

}  // namespace oscar
