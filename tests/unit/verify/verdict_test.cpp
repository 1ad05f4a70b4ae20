// SPDX-License-Identifier: MIT
#include "verify/verdict/verdict.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "unit/verify/sample.hpp"

namespace oscar {
namespace {

using namespace test;

/// A part with these figures: output error, softmax KL, model KL, perplexity ratio.
MethodReport figures_of(const std::string& part, double error, double softmax_kl, double kld, double ppl_ratio) {
  MethodReport method;
  method.name = part, method.kind = MethodKind::kThis;
  method.attention = AttentionMetrics{};
  method.attention->output_rel_error = error, method.attention->softmax_kl = softmax_kl;
  method.model = ModelMetrics{};
  method.model->positions = 1, method.model->kld_mean = kld, method.model->ppl_ratio = ppl_ratio;
  return method;
}

/// A set of rotations with these figures.
VerifyReport report_of(double error, double softmax_kl, double kld, double ppl_ratio) {
  VerifyReport report;
  report.parts = {{.name = kRotationsName, .default_limits = verify::int2_thresholds()}};
  report.methods = {figures_of(kRotationsName, error, softmax_kl, kld, ppl_ratio)};
  return report;
}

VerifyReport judged(VerifyReport report, const VerifyThresholds& given) {
  verify::judge(report, given, true);
  return report;
}

}  // namespace

TEST_CASE("default limits part sets that work from naive ones, as measured") {
  // Output error, softmax KL, model KL, perplexity ratio.
  struct Row {
    std::array<double, 4> figures;
    bool works;
  };
  std::vector<Row> rows{{{0.0167, 0.0573, 0.0207, 1.0103}, true},               // 15M model: oscar
                        {{0.0946, 0.181, 0.118, 1.095}, false}};                // no rotation
  const Json measured = read_json(test::data("../bench/results/limits.json"));  // 2M model, by bench_limits.py
  REQUIRE(measured.at("rows").size() >= 11);
  for (const Json& row : measured.at("rows")) {
    if (row.at("levels") != "4,4") continue;
    const auto figure = [&](const char* name) { return row.at("figures").at(name).get<double>(); };
    rows.push_back({{figure("output_rel_error"), figure("softmax_kl"), figure("kld_mean"), 1 + figure("ppl_increase")},
                    row.at("works")});
  }
  for (const auto& [f, works] : rows) {
    CAPTURE(f[2]);
    CHECK((judged(report_of(f[0], f[1], f[2], f[3]), {}).verdict == Verdict::kAccepted) == works);
  }
}

TEST_CASE("limits of coded sets follow their bits, between sets that work and sets that do not, as measured") {
  const auto accepted = [](const Json& f, double bits) {
    VerifyReport report = report_of(f.at("output_rel_error"), f.at("softmax_kl"), f.at("kld_mean"),
                                    1 + f.at("ppl_increase").get<double>());
    report.parts[0].default_limits = verify::coded_thresholds(bits);
    return judged(report, {}).verdict == Verdict::kAccepted;
  };
  int measured = 0;
  for (const std::string model : {"qwen", "gemma", "smollm2"}) {
    const Json language = read_json(test::data("../bench/results/real_model_" + model + "_h200.json"));
    const double ppl = language.at("baselines").at(0).at("ppl");
    for (const Json& row : language.at("recipes")) {
      const std::string name = row.at("name");
      if (!name.starts_with("`coded`")) continue;
      CAPTURE(model);
      CAPTURE(name);
      CHECK(accepted({{"output_rel_error", row.at("output_rel_error")},
                      {"softmax_kl", row.at("softmax_kl")},
                      {"kld_mean", row.at("kld")},
                      {"ppl_increase", row.at("ppl").get<double>() / ppl - 1}},
                     row.at("bits").at("fp16_params")));
      ++measured;
    }
  }
  CHECK(measured == 22);
  // Fitted on code, or on dialogue, and used on German.
  const Json crossed = read_json(test::data("../bench/results/real_model_h200.json"));
  for (const Json& row : crossed.at("crossed")) {
    if (!row.at("name").get<std::string>().starts_with("`coded`")) continue;
    const auto kld = [&](const char* domain) { return row.at("kld_by_domain").at(domain).get<double>(); };
    const double limit = *verify::coded_thresholds(2.25).max_kld;
    CHECK(kld("german") > limit);
    CHECK(kld(row.at("on").get<std::string>().c_str()) < limit / 3);
  }
  int rows = 0;
  const Json by_bits = read_json(test::data("../bench/results/limits.json"));
  for (const Json& row : by_bits.at("rows")) {
    if (row.at("levels") != "coded") continue;
    CAPTURE(row.at("set"));
    CHECK(accepted(row.at("figures"), row.at("bits_per_code")) == row.at("works"));
    ++rows;
  }
  CHECK(rows >= 8);
  CHECK(verify::coded_thresholds(2).measured_on == verify::kCodedLimitsMeasuredOn);
  // What 1.5 bits may do, 4 bits may not.
  CHECK(*verify::coded_thresholds(1.25).max_kld == *verify::int2_thresholds().max_kld);
  CHECK(*verify::coded_thresholds(4).max_softmax_kl == doctest::Approx(0.04 / std::pow(2.0, 3.5)));
  // What a model does not feel at 2.25 bits it does not feel at 4.
  CHECK(*verify::coded_thresholds(4).max_kld == *verify::coded_thresholds(2.25).max_kld);
}

TEST_CASE("a reason names the figure, the limit and where it comes from") {
  const VerifyReport report = judged(report_of(0.01, 0.5, 0.02, 1.05), {.max_kld = 0.015});
  CHECK(report.verdict == Verdict::kRejected);
  REQUIRE(report.reasons.size() == 2);
  CHECK(report.reasons[0] == "model KL 0.02 is above --max-kld 0.015");
  CHECK(report.reasons[1] == "relative perplexity increase 0.05 is above 0.035, the default (--max-ppl-increase)");
  const Json limits = to_json(report).at("limits");
  REQUIRE(limits.size() == 2);
  CHECK(limits[0] ==
        Json{{"part", "rotations"}, {"figure", "kld_mean"}, {"value", 0.02}, {"limit", 0.015}, {"origin", "given"}});
  CHECK(limits[1].at("value").get<double>() == doctest::Approx(0.05));
  CHECK(limits[1].at("origin") == "default");
  CHECK(limits[1].at("measured_on") == verify::kDefaultLimitsMeasuredOn);
}

TEST_CASE("where the model was run its predictions decide, else its attention; needles are held to what bf16 finds") {
  // A model that does not feel what its attention does, and one that does.
  CHECK(judged(report_of(0.5, 0.5, 0.003, 1.001), {}).verdict == Verdict::kAccepted);
  CHECK(judged(report_of(0.001, 0.001, 0.457, 1.5), {}).verdict == Verdict::kRejected);
  CHECK(judged(report_of(0.5, 0.001, 0.003, 1.001), {.max_output_error = 0.1}).reasons ==
        std::vector<std::string>{"attention output error 0.5 is above --max-output-error 0.1"});
  VerifyReport of_a_dump = report_of(0.5, 0.5, 0, 1);
  of_a_dump.methods[0].model.reset();
  CHECK(judged(of_a_dump, {}).reasons.size() == 2);

  const auto with_needles = [](int found, int found_exactly) {
    VerifyReport report = report_of(0.001, 0.001, 0.003, 1.001);
    report.methods[0].model->needles = 8, report.methods[0].model->needle_hits = found;
    report.methods.push_back(figures_of("bf16", 0, 0, 0, 1));
    report.methods[1].kind = MethodKind::kExact;
    report.methods[1].model->needles = 8, report.methods[1].model->needle_hits = found_exactly;
    return report;
  };
  CHECK(judged(with_needles(4, 8), {}).verdict == Verdict::kAccepted);
  CHECK(judged(with_needles(3, 8), {}).reasons ==
        std::vector<std::string>{"share of the needles lost 0.625 is above 0.5, the default (--max-needles-lost)"});
  CHECK(judged(with_needles(0, 0), {}).limits.size() == 2);
  CHECK(judged(with_needles(2, 0), {.max_needles_lost = 0.1}).reasons ==
        std::vector<std::string>{"bf16 itself found no needle (--max-needles-lost)"});
  CHECK(judged(report_of(0, 0, 0, 1), {.max_needles_lost = 0.1}).reasons ==
        std::vector<std::string>{"share of the needles lost was not measured (--max-needles-lost)"});
}

TEST_CASE("a given limit may be wider than the default, and no number is above every limit") {
  CHECK(judged(report_of(0.5, 0.5, 0.5, 1.5), {1.0, 1.0, 1.0, 1.0}).verdict == Verdict::kAccepted);
  CHECK(judged(report_of(std::nan(""), 0, 0, 1), {}).verdict == Verdict::kRejected);
  VerifyReport unmeasured = report_of(0, 0, 0, 1);
  unmeasured.methods[0].attention.reset(), unmeasured.methods[0].model.reset();
  CHECK(judged(unmeasured, {}).verdict == Verdict::kNotMeasured);
}

TEST_CASE("a set without a rotation is rejected by default, and without limits nothing is accepted") {
  const test::TemporaryFolder folder;
  const fs::path path = written(folder, without_rotation(Sample::get().set));
  VerifyOptions options;
  options.compare = {"none"};
  const Verified v = verified(path, model_on(Sample::get().held_out), options);
  CHECK(v.report.verdict == Verdict::kRejected);
  CHECK(structure_ok(v.report));
  CHECK(v.report.parts[0].bits == 2);
  check_contains(v.reasons, "the default (--max-kld)");
  options.default_limits = false;
  const Verified free = verified(path, model_on(Sample::get().held_out), options);
  CHECK_MESSAGE(free.report.verdict == Verdict::kNotMeasured, free.reasons);
  check_contains(free.warnings, "no figure of the set is held to a limit");
  CHECK(free.report.limits.empty());
}

}  // namespace oscar
