// SPDX-License-Identifier: MIT
// oscar fit --recipe auto, where the target can read both kinds of caches: the coded one, and rotations with one codec
// for all channels. The model judges one of each on the calibration sequences that it judges candidates on; only if the
// coded cache does not win are other rotation sets fitted.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <optional>

#include "base/clock.hpp"
#include "base/errors.hpp"
#include "commands/fit_command.hpp"
#include "fit/held_out.hpp"
#include "model_judge.hpp"
#include "verify/methods.hpp"

namespace oscar {
namespace {

constexpr const char* kRivalName = "stretch fisher, centred, 5,3";

/// The rotation set that the coded cache is judged against: of what the search tries, the best on the models that were
/// measured (tests/bench/README.md).
FitOptions rival_of(const FitOptions& options) {
  FitOptions rival = options;
  rival.recipe = "stretch", rival.key_objective = "fisher", rival.levels = "5,3", rival.center = true;
  return rival;
}

Json to_json(const char* name, const ModelScore& score) {
  return {{"name", name}, {"model_kl", score.kld}, {"probe_hits", score.probe}};
}

}  // namespace

bool fit_coded_if_best(const FitCommand& command, std::vector<TokenSequence>& sequences, Context& context) {
  Status& status = *context.status;
  const auto started = std::chrono::steady_clock::now();
  FitCommand coded = command;
  coded.fit.recipe = "coded";
  const std::unique_ptr<Backend> backend = start_backend(context);
  auto input = std::make_unique<FitInput>(coded, context);
  sequences = input->sequences();
  const auto search = [&](const std::string& why) {
    status.notice("recipe auto leaves the coded cache out: " + why);
    return false;
  };
  if (const std::string why = input->why_not_judged(); !why.empty()) return search(why);
  try {
    (void)HeldOutSplit(static_cast<std::int64_t>(sequences.size()));
  } catch (const TooLittleData& error) {
    return search(error.what());
  }
  input->wait_until_ready();
  CodedSet set;
  try {
    set = coded_set_of(coded, coded_data_of(coded, *input, *backend, status), *backend);
  } catch (const DataError& error) {  // too little text for a plan, or heads that do not fit
    return search(error.what());
  }
  input.reset();  // a live model cannot go back
  FitCommand plain = command;
  plain.fit = rival_of(command.fit);
  input = std::make_unique<FitInput>(plain, context, std::nullopt, sequences);
  input->wait_until_ready();
  const RotationSet rival = fit(input->source(), plain.fit, *backend, status).set;
  const std::array methods{method_of_coded_set(set, command.fit.windows),
                           verify::method_of_set(rival, command.fit.windows)};
  const MethodJudge judge = make_method_judge(*input->runner(), sequences, command.fit, *backend);
  const std::vector<ModelScore> scores = judge(methods);
  const std::string reason = fmt::format("the KL of the model's predictions is {:.3g} with it, and {:.3g} with {}",
                                         scores[0].kld, scores[1].kld, kRivalName);
  // Not a number loses.
  if (!(scores[0].kld <= scores[1].kld)) return search(reason);
  set.recipe["search"] = {{"choice", "coded"},
                          {"reason", reason},
                          {"candidates", {to_json("coded", scores[0]), to_json(kRivalName, scores[1])}}};
  status.notice("chose coded: " + reason);
  write_coded_fit(command, set, seconds_since(started), *backend, context);
  return true;
}

}  // namespace oscar
