// SPDX-License-Identifier: MIT
// OptR inside the judge: fitted where the model reads calibration text, its substitute elsewhere.
#include "codec/optr/fit.hpp"
#include "model/weights/output_projection.hpp"
#include "unit/verify/sample.hpp"
#include "verify/methods.hpp"

namespace oscar {
namespace {

using namespace test;

/// Short texts: what matters here is what becomes of the fit.
std::vector<TokenSequence> short_texts(const char* name) {
  return read_tokens(data(std::string("golden/qwen3-2m/") + name), {160, 480, 0});
}

VerifyInputs calibrated_on(const std::vector<TokenSequence>& texts) {
  VerifyInputs inputs = model_on(short_texts("tokens_eval.npy"));
  inputs.calibration = {
      texts, [](int layer) { return read_output_projection(data("qwen3-2m"), Sample::get().runner->config(), layer); }};
  return inputs;
}

VerifyOptions only(std::vector<std::string> names) {
  VerifyOptions options;
  options.compare = std::move(names);
  return options;
}

std::vector<std::string> names_of(const std::vector<KvMethod>& methods) {
  std::vector<std::string> names;
  for (const KvMethod& method : methods) names.push_back(method.name);
  return names;
}

}  // namespace

TEST_CASE("OptR is fitted on calibration text and measured beside its substitute") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  const Verified v = verified(path, calibrated_on(short_texts("tokens_calib.npy")), only({"naive", "optr"}));
  REQUIRE(v.report.methods.size() == 3);
  const MethodReport &naive = v.report.methods[0], &optr = v.report.methods[1];
  CHECK(optr.name == "optr");
  check_contains(optr.description, "refined with W_O on 3 calibration texts (kept by ");
  check_contains(optr.description, " of 4 heads for keys, ");
  CHECK(optr.bits.fp16_params == 2.25);
  CHECK(optr.attention->output_rel_error < naive.attention->output_rel_error / 2);
  CHECK(optr.model->kld_mean < naive.model->kld_mean / 2);
  CHECK(v.warnings.find("optr is fitted on") == std::string::npos);
}

TEST_CASE("OptR fitted on what it is measured on is said") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  VerifyInputs inputs = calibrated_on(short_texts("tokens_eval.npy"));
  CHECK(inputs.calibration.texts.size() == 3);
  check_contains(verified(path, inputs, only({"optr"})).warnings,
                 "optr is fitted on 3 of the sequences that are measured: give other text to --calibration");
  const Verified without = verified(path, inputs, only({"naive"}));
  check_contains(without.warnings, "--calibration is not used: optr is not compared");
  CHECK(without.warnings.find("optr is fitted") == std::string::npos);
}

TEST_CASE("without calibration text or W_O the substitute is measured, and it is said") {
  const TemporaryFolder folder;
  const fs::path path = written(folder, Sample::get().set);
  const Verified plain = verified(path, model_on(short_texts("tokens_eval.npy")), only({"optr"}));
  CHECK(plain.report.methods[0].name == "optr_centred");
  check_contains(plain.warnings, "optr is measured as optr_centred: refined rotations need calibration text and W_O");
  CHECK(verified(path, {}, only({"naive"})).warnings.find("optr") == std::string::npos);

  VerifyInputs inputs = calibrated_on(short_texts("tokens_calib.npy"));
  inputs.calibration.output_projection = [](int) -> Tensor { throw DataError("outputs are gated", "layer 0", "…"); };
  const Verified gated = verified(path, inputs, only({"optr"}));
  CHECK(gated.report.methods[0].name == "optr_centred");
  check_contains(gated.warnings, "optr is measured as optr_centred: outputs are gated");
}

TEST_CASE("one of OptR and its substitute is among the usual methods, both among all") {
  const TemporaryFolder folder;
  const Subject subject = read_subject(written(folder, Sample::get().set));
  verify::Comparison comparison{{"all"}, true, {}};
  const auto names = [&](const char* which) {
    comparison.names = {which};
    const auto found = names_of(methods_for(subject, comparison, {16, 64}, subject.set.model));
    const auto count = [&](const char* name) { return std::count(found.begin(), found.end(), name); };
    return std::pair(count("optr"), count("optr_centred"));
  };
  CHECK(names("all") == std::pair<std::ptrdiff_t, std::ptrdiff_t>(0, 1));
  CHECK(names("every") == std::pair<std::ptrdiff_t, std::ptrdiff_t>(0, 1));
  Windows asked;
  comparison.fit_optr = [&](const std::vector<LayerShape>& layers, Windows windows) {
    CHECK(layers.size() == 4);
    asked = windows;
    return KvMethod{"optr", MethodKind::kBaseline, windows, {}};
  };
  CHECK(names("all") == std::pair<std::ptrdiff_t, std::ptrdiff_t>(1, 0));
  CHECK(names("every") == std::pair<std::ptrdiff_t, std::ptrdiff_t>(1, 1));
  CHECK(asked == Windows{64, 256});  // its authors' own
}

}  // namespace oscar
