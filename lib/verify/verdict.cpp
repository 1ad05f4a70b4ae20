// SPDX-License-Identifier: MIT
#include "verify/verdict.hpp"

#include <cstdio>
#include <map>

#include "base/errors.hpp"

namespace oscar::verify {
namespace {

std::string text_of(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.4g", value);
  return buffer;
}

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
  for (const MethodReport& method : report.methods) {
    if (method.kind == MethodKind::kThis) return &method;
  }
  return nullptr;
}

void hold(VerifyReport& report, const char* option, const char* what, const std::optional<double>& limit,
          const std::optional<double>& value, const char* needs) {
  if (!limit) return;
  if (!value) {
    // A set that fails its structure checks is rejected without being measured.
    if (!structure_ok(report)) return;
    throw UsageError(std::string(what) + " was not measured", option, std::string("give ") + needs);
  }
  if (*value <= *limit) return;
  report.reasons.push_back(std::string(what) + " " + text_of(*value) + " is above " + option + " " + text_of(*limit));
}

/// Methods that take more bits may be better.
bool takes_more_bits(const MethodReport& other, const MethodReport& set) {
  return other.bits.fp16_at_context > set.bits.fp16_at_context + 1e-9;
}

void warn_if_worse(VerifyReport& report, const MethodReport& set, const MethodReport& other) {
  const auto warn = [&](const char* what, double mine, double theirs) {
    if (mine <= theirs) return;
    report.warnings.push_back("worse than " + other.name + ": " + what + " " + text_of(mine) + " against " +
                              text_of(theirs));
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
    report.warnings.push_back(name + " is unknown" +
                              (entry.first > 1 ? " (" + std::to_string(entry.first) + " times)" : "") + ": " +
                              entry.second);
  }
}

}  // namespace

void judge(VerifyReport& report, const VerifyThresholds& thresholds) {
  add_structure_reasons(report);
  const MethodReport* set = set_under_test(report);
  std::optional<double> error, kld, increase;
  if (set != nullptr && set->attention) error = set->attention->output_rel_error;
  if (set != nullptr && set->model && set->model->positions > 0) {
    kld = set->model->kld_mean;
    increase = set->model->ppl_ratio - 1;
  }
  hold(report, "--max-output-error", "attention output error", thresholds.max_output_error, error,
       "--dump, or --model with --text or --tokens");
  hold(report, "--max-kld", "model KL", thresholds.max_kld, kld, "--model with --text or --tokens");
  hold(report, "--max-ppl-increase", "relative perplexity increase", thresholds.max_ppl_increase, increase,
       "--model with --text or --tokens");
  report.accepted = report.reasons.empty();
  if (set != nullptr) {
    for (const MethodReport& other : report.methods) {
      if (other.kind == MethodKind::kBaseline && !takes_more_bits(other, *set)) warn_if_worse(report, *set, other);
    }
  }
  warn_of_unknowns(report);
}

}  // namespace oscar::verify
