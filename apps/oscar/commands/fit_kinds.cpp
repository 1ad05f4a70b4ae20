// SPDX-License-Identifier: MIT
// oscar fit --recipe auto, where the target can read both kinds of caches: the coded one, and rotations with one codec
// for all channels. The model judges one of each, both fitted to the same sums over the same rows, on the calibration
// sequences that it judges candidates on; only if the coded cache does not win are other rotation sets fitted.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <optional>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "commands/fit_command.hpp"
#include "fit/layer_data.hpp"
#include "fit/statistics_fit.hpp"
#include "model_judge.hpp"
#include "verify/methods.hpp"

namespace oscar {
namespace {

constexpr const char* kRivalName = "stretch fisher, centred";

/// The rotation set that the coded cache is judged against: of what the search tries, the best on the models that were
/// measured (tests/bench/README.md).
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

bool fit_coded_if_best(const FitCommand& command, std::vector<TokenSequence>& sequences, Context& context) {
  Status& status = *context.status;
  const auto started = std::chrono::steady_clock::now();
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
  try {
    (void)HeldOutSplit(static_cast<std::int64_t>(sequences.size()));
  } catch (const TooLittleData& error) {
    return search(error.what());
  }
  input.wait_until_ready();
  const FitOptions rival_options = rival_of(command.fit);
  CodedSet set;
  RotationSet rival;
  try {
    const CodedData data = coded_data_of(coded, input, *backend, status, recipe_of_sums(rival_options).moments());
    set = coded_set_of(coded, data, *backend);
    rival = fit(statistics_of(data), rival_options, *backend, status).set;
  } catch (const DataError& error) {  // too little text for a plan, or heads that do not fit
    return search(error.what());
  }
  const std::array methods{method_of_coded_set(set, command.fit.windows),
                           verify::method_of_set(rival, command.fit.windows)};
  const std::vector<double> kld = judge_by_kl(*input.runner(), sequences, command.fit, *backend, methods);
  const std::string reason = fmt::format("the KL of the model's predictions is {:.3g} with it, and {:.3g} with {}",
                                         kld[0], kld[1], kRivalName);
  // Not a number loses.
  if (!(kld[0] <= kld[1])) return search(reason);
  set.recipe["search"] = {
      {"choice", "coded"},
      {"reason", reason},
      {"candidates", {{{"name", "coded"}, {"model_kl", kld[0]}}, {{"name", kRivalName}, {"model_kl", kld[1]}}}}};
  status.notice("chose coded: " + reason);
  write_coded_fit(command, set, seconds_since(started), *backend, context);
  return true;
}

}  // namespace oscar
