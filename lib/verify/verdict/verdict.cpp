// SPDX-License-Identifier: MIT
#include "verify/verdict/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/errors.hpp"

namespace oscar::verify {
namespace {

std::string text_of(double value) { return fmt::format("{:.4g}", value); }

/// "orthogonality failed (layer 3, key): … and 5 more": one line per check name.
void add_structure_reasons(VerifyReport& report) {
  std::map<std::string, std::vector<const Check*>> failed;
  for (const Check& check : report.checks) {
    if (check.ok == false) failed[check.name].push_back(&check);
  }
  for (const auto& [name, checks] : failed) {
    const Check& first = *checks.front();
    std::string where = first.layer ? "layer " + std::to_string(*first.layer) : "";
    if (!first.target.empty()) where += (where.empty() ? "" : ", ") + first.target;
    std::string line = name + " failed" + (where.empty() ? "" : " (" + where + ")");
    if (first.value && first.limit) line += ": " + text_of(*first.value) + " against " + text_of(*first.limit);
    if (!first.message.empty()) line += ": " + first.message;
    if (checks.size() > 1) line += "; and " + std::to_string(checks.size() - 1) + " more of this kind";
    report.reasons.push_back(line);
  }
}

const MethodReport* set_under_test(const VerifyReport& report) {
  const auto found = std::ranges::find(report.methods, MethodKind::kThis, &MethodReport::kind);
  return found == report.methods.end() ? nullptr : &*found;
}

/// A figure that a threshold holds.
struct Held {
  const char* figure;  // JSON name
  const char* words;
  const char* option;
  std::optional<double> VerifyThresholds::*limit;
  std::optional<double> value;
  const char* needs;
};

std::vector<Held> held_figures(const MethodReport* set) {
  constexpr const char* kAttention = "--dump, or --model with --text or --tokens";
  constexpr const char* kModel = "--model with --text or --tokens";
  std::optional<double> error, softmax_kl, kld, increase;
  if (set != nullptr && set->attention) {
    error = set->attention->output_rel_error;
    softmax_kl = set->attention->softmax_kl;
  }
  if (set != nullptr && set->model && set->model->positions > 0) {
    kld = set->model->kld_mean;
    increase = set->model->ppl_ratio - 1;
  }
  using T = VerifyThresholds;
  return {
      {"output_rel_error", "attention output error", "--max-output-error", &T::max_output_error, error, kAttention},
      {"softmax_kl", "softmax KL", "--max-softmax-kl", &T::max_softmax_kl, softmax_kl, kAttention},
      {"kld_mean", "model KL", "--max-kld", &T::max_kld, kld, kModel},
      {"ppl_increase", "relative perplexity increase", "--max-ppl-increase", &T::max_ppl_increase, increase, kModel}};
}

void hold(VerifyReport& report, const Held& held, const VerifyThresholds& given, const VerifyThresholds& defaults) {
  const bool is_given = (given.*held.limit).has_value();
  const std::optional<double> limit = is_given ? given.*held.limit : defaults.*held.limit;
  if (!limit) return;
  if (!held.value) {
    // A set that fails its structure checks is rejected without being measured.
    if (!is_given || !structure_ok(report)) return;
    throw UsageError(std::string(held.words) + " was not measured", held.option, std::string("give ") + held.needs);
  }
  report.limits.push_back({held.figure, *held.value, *limit, is_given, is_given ? "" : defaults.measured_on});
  if (*held.value <= *limit) return;
  report.reasons.push_back(std::string(held.words) + " " + text_of(*held.value) + " is above " +
                           (is_given ? held.option + (" " + text_of(*limit))
                                     : text_of(*limit) + ", the default for its bits (" + held.option + ")"));
}

/// Methods that take more bits may be better.
void warn_if_worse(VerifyReport& report, const MethodReport& set, const MethodReport& other) {
  if (other.kind != MethodKind::kBaseline || other.bits.fp16_at_context > set.bits.fp16_at_context + 1e-9) return;
  const auto warn = [&](const char* what, double mine, double theirs) {
    if (mine <= theirs) return;
    report.warnings.push_back(fmt::format("worse than {}: {} {:.4g} against {:.4g}", other.name, what, mine, theirs));
  };
  if (set.attention && other.attention) {
    warn("softmax KL", set.attention->softmax_kl, other.attention->softmax_kl);
    warn("attention output error", set.attention->output_rel_error, other.attention->output_rel_error);
  }
  if (set.model && other.model) warn("model KL", set.model->kld_mean, other.model->kld_mean);
}

void warn_of_unknowns(VerifyReport& report) {
  std::map<std::string, std::pair<int, std::string>> unknown;
  for (const Check& check : report.checks) {
    if (check.ok) continue;
    auto& [count, message] = unknown[check.name];
    if (count++ == 0) message = check.message;
  }
  for (const auto& [name, entry] : unknown) {
    const std::string times = entry.first > 1 ? fmt::format(" ({} times)", entry.first) : "";
    report.warnings.push_back(fmt::format("{} is unknown{}: {}", name, times, entry.second));
  }
}

}  // namespace

VerifyThresholds int2_thresholds() { return {0.08, 0.08, 0.045, 0.035, kDefaultLimitsMeasuredOn}; }

VerifyThresholds coded_thresholds(double bits) {
  constexpr double kMeasuredBits = 2.25;
  const VerifyThresholds most = int2_thresholds();
  const double scale = std::pow(4.0, kMeasuredBits - bits);
  return {std::min(0.01 * scale, *most.max_output_error), std::min(0.04 * scale, *most.max_softmax_kl),
          std::min(0.012 * scale, *most.max_kld), std::min(0.012 * scale, *most.max_ppl_increase),
          kCodedLimitsMeasuredOn};
}

void judge(VerifyReport& report, const VerifyThresholds& given, const VerifyThresholds& defaults) {
  add_structure_reasons(report);
  const MethodReport* set = set_under_test(report);
  for (const Held& held : held_figures(set)) hold(report, held, given, defaults);
  report.verdict = !report.reasons.empty() ? Verdict::kRejected
                   : report.limits.empty() ? Verdict::kNotMeasured
                                           : Verdict::kAccepted;
  for (const MethodReport& other : report.methods) {
    if (set != nullptr) warn_if_worse(report, *set, other);
  }
  if (set != nullptr && report.limits.empty() && (set->attention || set->model)) {
    report.warnings.emplace_back("no figure of the set is held to a limit, so that none can accept it");
  }
  warn_of_unknowns(report);
}

}  // namespace oscar::verify
