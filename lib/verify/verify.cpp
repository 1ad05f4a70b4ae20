// SPDX-License-Identifier: MIT
#include "verify/verify.hpp"

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "base/text.hpp"
#include "dump/live_source.hpp"
#include "model/tokenizer/tokens.hpp"
#include "verify/measure_source.hpp"
#include "verify/methods.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/data_covariance.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verdict/measured_text.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar::verify {
namespace {

void require_same(const ModelIdentity& data, const char* what, const char* option, const Expectation& expected) {
  const std::string &theirs = data.config_sha256, &measured = expected.model.config_sha256;
  if (theirs.empty() || measured.empty() || theirs == measured) return;
  throw DataError(std::string(what) + " of another model (" + data.id + ") than " + expected.origin, option,
                  "give data of the same model, or verify with it alone");
}

/// Numbers that both know.
bool other_shape(const ModelIdentity& a, const ModelIdentity& b) {
  constexpr std::array kSizes{&ModelIdentity::num_layers, &ModelIdentity::num_attention_heads,
                              &ModelIdentity::num_key_value_heads, &ModelIdentity::head_dim};
  return std::any_of(kSizes.begin(), kSizes.end(),
                     [&](auto size) { return a.*size > 0 && b.*size > 0 && a.*size != b.*size; });
}

bool failed(const std::vector<Check>& checks, const char* name) {
  return std::any_of(checks.begin(), checks.end(),
                     [&](const Check& check) { return check.name == name && check.ok == false; });
}

/// The best that is known about the model: its own config, then the data's manifest, then the set's.
Expectation expectation(const Subject& subject, const VerifyInputs& inputs) {
  Expectation expected;
  expected.from_outside = inputs.runner != nullptr || inputs.source != nullptr || inputs.statistics.has_value();
  if (inputs.runner != nullptr) {
    expected.model = inputs.runner->config().identity;
    expected.origin = "the model's config.json";
  } else if (inputs.source != nullptr && inputs.source->model().num_layers > 0) {
    expected.model = inputs.source->model();
    expected.origin = "the data's manifest";
  } else if (inputs.statistics) {
    expected.model = inputs.statistics->model;
    expected.origin = "the statistics' manifest";
  } else if (subject.ours) {
    expected.model = subject.model();
    expected.model.config_sha256.clear();  // a set cannot vouch for itself
    expected.model.revision.clear();
    expected.origin = "the set's manifest";
  }
  if (inputs.source != nullptr) {
    expected.data_layers = inputs.source->layer_ids();
  } else if (inputs.statistics) {
    for (const LayerStatistics& layer : inputs.statistics->layers) expected.data_layers.push_back(layer.layer_id);
  }
  return expected;
}

/// Throws DataError for a dump or statistics of another model than the one that the set is measured with: they would
/// be compared with it in vain.
void require_same_model(const VerifyInputs& inputs, const Expectation& expected) {
  if (inputs.statistics) require_same(inputs.statistics->model, "the statistics are", "--stats", expected);
  if (inputs.source != nullptr) require_same(inputs.source->model(), "the dump is", "--dump", expected);
}

/// Whether the set says that it is of another model than what it is held against: by config.json, or by the number or
/// size of heads or layers. Of a set that does not say, the checks of its shapes tell. False where nothing but the set
/// itself is known.
bool is_of_other_model(const Subject& subject, const Expectation& expected, const std::vector<Check>& checks) {
  if (!expected.from_outside) return false;
  const ModelIdentity& own = subject.model();
  if (failed(checks, "model_identity") || other_shape(own, expected.model)) return true;
  return own.config_sha256.empty() && (failed(checks, "shape") || failed(checks, "layer_coverage"));
}

/// Methods that are measured another way than their authors run them.
void warn_of_missing_rope(VerifyReport& report, const std::vector<KvMethod>& methods) {
  std::string names;
  for (const KvMethod& method : methods) {
    if (!method.before_rope || method.rope) continue;
    names += (names.empty() ? "" : ", ") + method.name;
  }
  if (names.empty()) return;
  report.warnings.push_back("nothing tells the model's rope_theta: " + names +
                            " quantise keys before RoPE, but are measured after it (--model tells)");
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
  const CalibrationData& fitted = subject.calibration();
  const bool same = !data.data_sha256.empty() && data.data_sha256 == fitted.data_sha256;
  const MeasurePlan plan{&subject,          &methods, inputs.layers, options.max_queries,
                         options.precision, same,     report.windows};
  const Measurements found = measure_source(source, plan, backend, status);
  subject.check_on(found.moments, report.checks);
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
  judge_held_out(report, "model", sequences_fitted_on(subject.calibration(), data.texts), texts.sequences,
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

/// Measures the set, beside other methods where both its sides are there.
void measure(VerifyReport& report, const Subject& subject, ModelIdentity model, const VerifyInputs& inputs,
             const VerifyOptions& options, Backend& backend, Status& status) {
  std::vector<KvMethod> methods;
  if (auto own = subject.method(report.windows)) {
    require_quantised_texts(inputs.model_data, report.windows);
    const ModelIdentity& fitted = subject.model();
    if (model.num_key_value_heads == 0) model.num_key_value_heads = fitted.num_key_value_heads;
    if (model.rope_theta == 0) model.rope_theta = fitted.rope_theta;
    methods = methods_beside(std::move(*own), options, model, subject.group_size());
    list_methods(report, methods);
    warn_of_missing_rope(report, methods);
    report.warnings.insert(report.warnings.end(), subject.caveats.begin(), subject.caveats.end());
  }
  if (inputs.statistics) {
    subject.check_on(subject.take(*inputs.statistics, report.checks), report.checks);
    report.data["statistics"] = description_of(*inputs.statistics);
  }
  if (inputs.runner != nullptr && !methods.empty()) warn_of_score_rules(report, methods, *inputs.runner);
  const auto exact = measure_layers(report, subject, methods, inputs, options, backend, status);
  measure_model_metrics(report, subject, methods, inputs, options, backend, status, exact.get());
}

/// Null if files hold not what was fitted, or contradict each other: there is nothing further to find out.
std::unique_ptr<Subject> sound_subject(const std::filesystem::path& path, VerifyReport& report) {
  check_file_hashes(path, report.checks);
  if (!structure_ok(report)) return nullptr;
  std::unique_ptr<Subject> subject = open_subject(path);
  subject->check_files(report.checks);
  return structure_ok(report) ? std::move(subject) : nullptr;
}

}  // namespace
}  // namespace oscar::verify

namespace oscar {

VerifyReport verify_rotations(const std::filesystem::path& rotations, const VerifyInputs& inputs,
                              const VerifyOptions& options, Backend& backend, Status& status) {
  VerifyReport report;
  report.precision = options.precision;
  report.rotation_set = {{"path", rotations.string()}};
  const auto subject = verify::sound_subject(rotations, report);
  if (subject == nullptr) {
    verify::judge(report, {}, {});
    return report;
  }
  subject->describe(report);
  report.windows = {options.sink.value_or(subject->windows().sink), options.recent.value_or(subject->windows().recent)};
  const verify::Expectation expected = verify::expectation(*subject, inputs);
  verify::require_same_model(inputs, expected);
  subject->check(expected, report.checks);
  report.other_model = verify::is_of_other_model(*subject, expected, report.checks);
  if (subject->measurable(report.checks)) {
    verify::measure(report, *subject, expected.model, inputs, options, backend, status);
  }
  if (options.require_held_out && !report.data.contains("attention") && !report.data.contains("model")) {
    report.reasons.push_back("nothing was measured on held-out text: give --model or --dump (--require-held-out)");
  }
  report.bits_per_code = subject->bits();
  verify::judge(report, options.thresholds, options.default_limits ? subject->default_limits() : VerifyThresholds{});
  return report;
}

}  // namespace oscar
