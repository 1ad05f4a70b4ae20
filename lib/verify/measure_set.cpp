// SPDX-License-Identifier: MIT
#include "verify/measure_set.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "dump/live_source.hpp"
#include "model/tokenizer/tokens.hpp"
#include "verify/attention/measure_source.hpp"
#include "verify/structure/checks.hpp"
#include "verify/verdict/held_out.hpp"
#include "verify/verdict/quantised.hpp"

namespace oscar::verify {
namespace {

bool same_tokens(const Subject& subject, const CalibrationData& data) {
  const CalibrationData& fitted = subject.set.calibration;
  return !data.data_sha256.empty() && data.data_sha256 == fitted.data_sha256;
}

void add_attention(VerifyReport& report, const Measurements& found) {
  for (std::size_t m = 0; m < found.methods.size(); ++m) {
    const MethodMeasurements& method = found.methods[m];
    AttentionSums pooled;
    for (std::size_t i = 0; i < method.layers.size(); ++i) {
      report.methods[m].layers.push_back({found.layers[i], method.layers[i].metrics(), method.heads[i]});
      pooled.add(method.layers[i]);
    }
    if (found.layers.empty()) continue;
    report.methods[m].attention = pooled.metrics();
    report.methods[m].attention_intervals = intervals_of(method.sequences);
  }
}

/// Attention metrics and moments, from the dump if there is one, else from the model on its texts. Returns what is
/// behind the model's last layer if that will be asked for; null if it was not computed.
std::unique_ptr<FinalStates> measure_layers(VerifyReport& report, const Subject& subject,
                                            const std::vector<KvMethod>& methods, const VerifyInputs& inputs,
                                            const VerifyOptions& options, Backend& backend, Status& status) {
  const bool live = inputs.source == nullptr && inputs.runner != nullptr && !inputs.model_data.texts.empty();
  if (inputs.source == nullptr && !live) return nullptr;
  const bool to_the_end = live && !methods.empty() && runs_texts_together(*inputs.runner, inputs.model_data, methods);
  std::unique_ptr<LiveSource> live_source;
  if (live) {
    live_source =
        open_live(*inputs.runner, inputs.model_data.texts, {.layers = inputs.layers, .to_the_end = to_the_end}, status);
  }
  QkvSource& source = live ? *live_source : *inputs.source;
  const CalibrationData data = source.calibration();
  const bool same = same_tokens(subject, data);
  const MeasurePlan plan{&subject,          &methods, inputs.layers, options.max_queries,
                         options.precision, same,     report.windows};
  const Measurements found = measure_source(source, plan, backend, status);
  check_decomposition_on_data(subject, found.covariances, report.checks);
  if (subject.coded != nullptr) check_coded_on_data(*subject.coded, found.coded, report.checks);
  add_attention(report, found);
  if (const std::size_t all = methods.empty() ? 0 : methods.back().layers.size(); found.layers.size() < all) {
    report.warnings.push_back("attention is measured in " + std::to_string(found.layers.size()) + " of " +
                              plural(all, "layer"));
  }
  report.data["attention"] = {{"source", live ? "model" : "dump"},
                              {"data_sha256", data.data_sha256},
                              {"tokens_per_layer", found.tokens},
                              {"queries_per_layer", found.queries},
                              {"layers", found.layers.size()}};
  if (!methods.empty()) report.data["attention"].update(to_json(found.keys));
  const CalibrationData& fitted = subject.set.calibration;
  const auto seen = live ? sequences_fitted_on(fitted, inputs.model_data.texts) : sequences_fitted_on(fitted, data);
  judge_held_out(report, "attention", seen, data.sequences, options.require_held_out);
  return to_the_end ? live_source->final_states() : nullptr;
}

/// exact: what measure_layers() returns.
void measure_model_metrics(VerifyReport& report, const Subject& subject, const std::vector<KvMethod>& methods,
                           const VerifyInputs& inputs, const VerifyOptions& options, Backend& backend, Status& status,
                           const FinalStates* exact) {
  const ModelData& data = inputs.model_data;
  if (inputs.runner == nullptr || (data.texts.empty() && data.needles.empty() && data.quotes.empty()) ||
      methods.empty())
    return;
  const auto metrics = measure_model(*inputs.runner, data, methods, options.precision, backend, status, exact);
  for (std::size_t m = 0; m < metrics.size(); ++m) report.methods[m].model = metrics[m];
  const CalibrationData texts = describe(data.texts);
  report.data["model"] = {{"data_sha256", texts.data_sha256},
                          {"tokens", texts.tokens},
                          {"computed_on", inputs.runner->description()},
                          {"needles", data.needles.size()},
                          {"quotes", data.quotes.size()}};
  if (!data.needles.empty()) {
    report.data["model"]["needles_quantised_share"] = keys_of_needles(data, report.windows).share();
  }
  if (!data.quotes.empty()) {
    report.data["model"]["quotes_quantised_share"] = keys_of_quotes(data, report.windows).share();
  }
  if (data.texts.empty()) return;
  report.data["model"].update(to_json(keys_of_texts(data, report.windows)));
  judge_held_out(report, "model", sequences_fitted_on(subject.set.calibration, data.texts), texts.sequences,
                 options.require_held_out);
}

/// What sinks and soft caps of the model change: nothing that a dump holds tells of them.
void warn_of_score_rules(VerifyReport& report, const std::vector<KvMethod>& methods, const ModelRunner& runner) {
  const std::vector<int> layers = runner.config().cache_layers();
  const auto rule_differs = [&](int layer) { return !runner.score_rule(layer).ignores_shifts(); };
  if (std::none_of(layers.begin(), layers.end(), rule_differs)) return;
  report.warnings.push_back("attention metrics leave out the model's sinks and soft caps; its own figures know them");
  const auto& own = methods.back().layers;
  const auto centred = [](const auto& layer) {
    return layer.second.key.transform != nullptr && !layer.second.key.transform->mean.empty();
  };
  if (std::none_of(own.begin(), own.end(), centred)) return;
  report.warnings.push_back("keys are centred, which shifts all scores of a query: sinks and soft caps feel that");
}

}  // namespace

void require_quantised_texts(const ModelData& data, Windows windows) {
  check_model_data(data);
  if (!data.texts.empty()) {
    require_quantised(keys_of_texts(data, windows), "the model", "--text, --tokens", windows);
  }
  if (!data.needles.empty()) {
    require_quantised(keys_of_needles(data, windows), "needles", "--needle", windows);
  }
  if (!data.quotes.empty()) {
    require_quantised(keys_of_quotes(data, windows), "quotations", "--quote", windows);
  }
}

void list_methods(VerifyReport& report, const std::vector<KvMethod>& methods) {
  constexpr std::int64_t kContext = 131072;  // tokens that bits per element are of
  for (const KvMethod& method : methods) {
    report.methods.push_back(
        {method.name, method.kind, method.description, method.windows, bits_per_element(method, kContext), {}, {}, {}});
  }
}

void measure_set(VerifyReport& report, const Subject& subject, const std::vector<KvMethod>& methods,
                 const VerifyInputs& inputs, const VerifyOptions& options, Backend& backend, Status& status) {
  if (inputs.runner != nullptr && !methods.empty()) warn_of_score_rules(report, methods, *inputs.runner);
  const auto exact = measure_layers(report, subject, methods, inputs, options, backend, status);
  measure_model_metrics(report, subject, methods, inputs, options, backend, status, exact.get());
}

}  // namespace oscar::verify
