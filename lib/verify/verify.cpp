// SPDX-License-Identifier: MIT
#include "verify/verify.hpp"

#include <algorithm>
#include <array>

#include "base/errors.hpp"
#include "coded/coded_set.hpp"
#include "verify/measure_set.hpp"
#include "verify/methods.hpp"
#include "verify/report/set_figures.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/data_covariance.hpp"
#include "verify/structure/expectation.hpp"
#include "verify/verdict/quantised.hpp"
#include "verify/verdict/verdict.hpp"
#include "verify/verify_coded.hpp"

namespace oscar {
namespace {

using verify::Expectation;

/// Checks without which nothing can be measured: the set does not fit the data, or arithmetic makes no sense.
bool measurable(const VerifyReport& report) {
  constexpr std::array kNeeded{"finite", "shape", "layer_coverage", "sides_agree"};
  return std::none_of(report.checks.begin(), report.checks.end(), [&](const Check& check) {
    return check.ok == false && std::find(kNeeded.begin(), kNeeded.end(), check.name) != kNeeded.end();
  });
}

Json describe_set(const std::filesystem::path& path, const Subject* subject) {
  Json json = {{"path", path.string()}};
  if (subject == nullptr) return json;
  json["format"] = subject->ours ? "oscar.rotation_set.v1" : "foreign";
  Json objectives = Json::object();
  for (const SubjectSide& side : subject->sides)
    objectives[side.target.empty() ? "unknown" : side.target] = side.objective;
  json["objectives"] = objectives;
  json["layers"] = subject->sides.front().layers.size();
  if (!subject->ours) return json;
  json["model"] = to_json(subject->set.model);
  json["calibration"] = to_json(subject->set.calibration);
  json["calibration"].erase("blocks");
  json["recipe"] = subject->set.recipe.value("name", "");
  json["verified_before"] = subject->set.verification.is_object();
  return json;
}

void check_structure(const Subject& subject, const Expectation& expected, std::vector<Check>& checks) {
  verify::check_finite(subject, checks);
  verify::check_coverage(subject, expected, checks);
  verify::check_provenance(subject, expected, checks);
  verify::check_fp8(subject, checks);
  verify::check_orthogonality(subject, checks);
  verify::check_spectrum(subject, checks);
  verify::check_stretch(subject, checks);
  verify::check_decomposition(subject, checks);
}

void check_on_statistics(VerifyReport& report, const Subject& subject, const Statistics& statistics) {
  const auto covariances = verify::covariances_of(subject, statistics, report.checks);
  verify::check_decomposition_on_data(subject, covariances, report.checks);
  report.data["statistics"] = verify::description_of(statistics);
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

/// Both sides are there: methods can be compared.
std::vector<KvMethod> add_methods(VerifyReport& report, const Subject& subject, ModelIdentity model,
                                  const VerifyOptions& options) {
  if (subject.sides.size() < 2) return {};
  const ModelIdentity& fitted = subject.set.model;
  if (model.num_key_value_heads == 0) model.num_key_value_heads = fitted.num_key_value_heads;
  if (model.rope_theta == 0) model.rope_theta = fitted.rope_theta;
  const verify::Comparison comparison{options.compare, options.own_windows};
  std::vector<KvMethod> methods = verify::methods_beside(verify::method_of_set(set_of(subject), report.windows),
                                                         comparison, model, subject.set.key_codec.group_size);
  verify::list_methods(report, methods);
  warn_of_missing_rope(report, methods);
  if (!subject.set.has_clip_ratios) {
    report.warnings.push_back(
        "the set does not say its clip ratios: measured with the published 0.96 for keys, 0.92 for values");
  }
  return methods;
}

}  // namespace

VerifyReport verify_rotations(const std::filesystem::path& rotations, const VerifyInputs& inputs,
                              const VerifyOptions& options, Backend& backend, Status& status) {
  if (is_coded_set(rotations)) return verify::verify_coded(rotations, inputs, options, backend, status);
  VerifyReport report;
  report.precision = options.precision;
  // Where the files hold not what was fitted, or contradict each other, there is nothing further to find out.
  const auto rejected_at_once = [&] {
    report.rotation_set = describe_set(rotations, nullptr);
    verify::judge(report, {}, {});
    return report;
  };
  verify::check_file_hashes(rotations, report.checks);
  if (!structure_ok(report)) return rejected_at_once();
  const Subject subject = read_subject(rotations);
  verify::check_one_truth(subject, report.checks);
  if (!structure_ok(report)) return rejected_at_once();
  report.rotation_set = describe_set(rotations, &subject);
  report.windows = {options.sink.value_or(subject.set.windows.sink),
                    options.recent.value_or(subject.set.windows.recent)};
  report.spectra = verify::spectra_of(subject);
  report.clips = verify::clips_of(subject);
  const Expectation expected = verify::expectation(subject, inputs);
  verify::require_same_model(inputs, expected);
  check_structure(subject, expected, report.checks);
  report.other_model = verify::is_of_other_model(subject, expected, report.checks);
  if (measurable(report)) {
    if (subject.sides.size() == 2) verify::require_quantised_texts(inputs.model_data, report.windows);
    const std::vector<KvMethod> methods = add_methods(report, subject, expected.model, options);
    if (inputs.statistics) check_on_statistics(report, subject, *inputs.statistics);
    verify::measure_set(report, subject, methods, inputs, options, backend, status);
  }
  if (options.require_held_out && !report.data.contains("attention") && !report.data.contains("model")) {
    report.reasons.push_back("nothing was measured on held-out text: give --model or --dump (--require-held-out)");
  }
  report.bits_per_code = 2;
  verify::judge(report, options.thresholds, options.default_limits ? verify::int2_thresholds() : VerifyThresholds{});
  return report;
}

}  // namespace oscar
