// SPDX-License-Identifier: MIT
#include "verify/verify_coded.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "coded/coded_set.hpp"
#include "verify/measure_set.hpp"
#include "verify/methods.hpp"
#include "verify/report/set_figures.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/data_covariance.hpp"
#include "verify/structure/expectation.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar::verify {
namespace {

Json describe_set(const std::filesystem::path& path, const CodedSet& set) {
  Json calibration = to_json(set.calibration);
  calibration.erase("blocks");
  return {{"path", path.string()},
          {"format", kCodedSchema},
          {"layers", set.layers.size()},
          {"model", to_json(set.model)},
          {"calibration", std::move(calibration)},
          {"recipe", "coded"},
          {"bits", bits_of(set)},
          {"scope", set.scope},
          {"verified_before", set.verification.is_object()}};
}

void check_sides(const CodedSet& set, std::vector<Check>& checks) {
  for (const CodedLayer& layer : set.layers) {
    for (const auto& [target, side] : {std::pair("key", &layer.key), std::pair("value", &layer.value)}) {
      check_inverse_pair(side->transform, layer.layer_id, target, checks);
      const bool sane = std::ranges::all_of(side->lambda, [](double x) { return x >= 0; });
      checks.push_back({"spectrum", layer.layer_id, target, {}, {}, sane, sane ? "" : "a variance is negative"});
    }
  }
}

/// What the manifest says of bits is what rows take.
void check_bits(const CodedSet& set, const Json& manifest, std::vector<Check>& checks) {
  constexpr double kRounding = 1e-9;
  const double taken = bits_of(set), said = manifest["codec"]["bits_taken"];
  checks.push_back({"bits",
                    {},
                    "",
                    std::abs(taken - said),
                    kRounding,
                    std::abs(taken - said) <= kRounding,
                    "rows take other bits than the manifest says"});
  checks.push_back(
      {"budget", {}, "", taken, set.bits, taken <= set.bits + kRounding, "rows take more bits than asked"});
}

void check_layers(const CodedSet& set, const Expectation& expected, std::vector<Check>& checks) {
  std::vector<int> wanted = expected.model.cache_layers;
  for (int layer = 0; wanted.empty() && layer < expected.model.num_layers; ++layer) wanted.push_back(layer);
  std::string missing;
  for (const int layer : wanted) {
    const auto is_it = [&](const CodedLayer& each) { return each.layer_id == layer; };
    if (std::ranges::none_of(set.layers, is_it)) missing += (missing.empty() ? "" : ", ") + std::to_string(layer);
  }
  checks.push_back(
      {"layer_coverage", {}, "", {}, {}, missing.empty(), missing.empty() ? "" : "layers are missing: " + missing});
  std::string wrong;
  for (const CodedLayer& layer : set.layers) {
    const Transform& key = layer.key.transform;
    const bool fits = (expected.model.head_dim == 0 || key.rotation.dim == expected.model.head_dim) &&
                      (expected.model.num_key_value_heads == 0 ||
                       (key.rotation.count == expected.model.num_key_value_heads &&
                        layer.value.transform.rotation.count == expected.model.num_key_value_heads));
    if (!fits) wrong += (wrong.empty() ? "" : ", ") + std::to_string(layer.layer_id);
  }
  checks.push_back({"shape",
                    {},
                    "",
                    {},
                    {},
                    wrong.empty(),
                    wrong.empty() ? "" : "heads differ from the model's in layers " + wrong});
}

/// What the rest of verify needs to know of the set.
Subject subject_of(const std::filesystem::path& path, const CodedSet& set) {
  Subject subject;
  subject.path = path;
  subject.ours = true;
  subject.set.model = set.model;
  subject.set.calibration = set.calibration;
  subject.set.windows = set.windows;
  subject.coded = &set;
  return subject;
}

}  // namespace

VerifyReport verify_coded(const std::filesystem::path& path, const VerifyInputs& inputs, const VerifyOptions& options,
                          Backend& backend, Status& status) {
  VerifyReport report;
  report.precision = options.precision;
  check_file_hashes(path, report.checks);
  if (!structure_ok(report)) {
    report.rotation_set = {{"path", path.string()}};
    judge(report, {}, {});
    return report;
  }
  const CodedSet set = read_coded_set(path);
  const Subject subject = subject_of(path, set);
  report.rotation_set = describe_set(path, set);
  report.windows = {options.sink.value_or(set.windows.sink), options.recent.value_or(set.windows.recent)};
  report.plan = plan_of(set);
  report.spectra = spectra_of(set);
  const Expectation expected = expectation(subject, inputs);
  require_same_model(inputs, expected);
  check_sides(set, report.checks);
  check_bits(set, read_json(path / "manifest.json"), report.checks);
  check_layers(set, expected, report.checks);
  report.other_model = is_of_other_model(subject, expected, report.checks);
  if (structure_ok(report)) {
    require_quantised_texts(inputs.model_data, report.windows);
    KvMethod coded = method_of_coded_set(set, report.windows);
    const Comparison comparison{options.compare, options.own_windows};
    const std::vector<KvMethod> methods = methods_beside(std::move(coded), comparison, expected.model, 0);
    list_methods(report, methods);
    if (inputs.statistics) {
      check_coded_on_data(set, coded_moments_of(*inputs.statistics, report.checks), report.checks);
      report.data["statistics"] = description_of(*inputs.statistics);
    }
    measure_set(report, subject, methods, inputs, options, backend, status);
  }
  report.bits_per_code = bits_of(set);
  judge(report, options.thresholds,
        options.default_limits ? coded_thresholds(report.bits_per_code) : VerifyThresholds{});
  return report;
}

}  // namespace oscar::verify
