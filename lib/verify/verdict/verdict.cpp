// SPDX-License-Identifier: MIT
#include "verify/verdict/verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "base/errors.hpp"
#include "base/text.hpp"

namespace oscar::verify {
namespace {

/// A model that finds less than half of what it finds with bfloat16 is another model.
constexpr double kMostNeedlesLost = 0.5;

std::string text_of(double value) { return fmt::format("{:.4g}", value); }

/// "orthogonality failed (layer 3, key): … and 5 more": one line per check name, of one part, or of the whole set.
std::vector<std::string> structure_reasons(const VerifyReport& report, const std::string& part) {
  std::map<std::string, std::vector<const Check*>> failed;
  for (const Check& check : report.checks) {
    if (check.ok == false && check.part == part) failed[check.name].push_back(&check);
  }
  std::vector<std::string> reasons;
  for (const auto& [name, checks] : failed) {
    const Check& first = *checks.front();
    std::string where = first.layer ? "layer " + std::to_string(*first.layer) : "";
    if (!first.target.empty()) where += (where.empty() ? "" : ", ") + first.target;
    std::string line = name + " failed" + (where.empty() ? "" : " (" + where + ")");
    if (first.value && first.limit) line += ": " + text_of(*first.value) + " against " + text_of(*first.limit);
    if (!first.message.empty()) line += ": " + first.message;
    if (checks.size() > 1) line += "; and " + std::to_string(checks.size() - 1) + " more of this kind";
    reasons.push_back(line);
  }
  return reasons;
}

/// The figures of a part; null if it was not measured.
const MethodReport* method_of(const VerifyReport& report, const PartReport& part) {
  const auto found = std::ranges::find_if(report.methods, [&](const MethodReport& method) {
    return method.kind == MethodKind::kThis && method.name == part.name;
  });
  return found == report.methods.end() ? nullptr : &*found;
}

/// "rotations: ", where the set has several parts.
std::string prefix_of(const VerifyReport& report, const PartReport& part) {
  return report.parts.size() > 1 ? part.name + ": " : "";
}

/// A figure that a threshold holds.
struct Held {
  const char* figure;  // JSON name
  const char* words;
  const char* option;
  std::optional<double> VerifyThresholds::*limit;
  std::optional<double> value;
  bool by_default = true;      // without a threshold that is given, too
  const char* none = nullptr;  // why there is no value; null: it was not measured
};

/// The share of the needles found with nothing quantised that a part loses: not finite where none was found, no value
/// where that was not measured.
std::optional<double> needles_lost(const VerifyReport& report, const MethodReport& part) {
  const auto exact = std::ranges::find(report.methods, MethodKind::kExact, &MethodReport::kind);
  if (exact == report.methods.end() || !exact->model || exact->model->needles == 0 || !part.model) return {};
  return 1 - static_cast<double>(part.model->needle_hits) / static_cast<double>(exact->model->needle_hits);
}

std::vector<Held> held_figures(const VerifyReport& report, const MethodReport* part) {
  std::optional<double> error, softmax_kl, kld, increase, lost;
  if (part != nullptr && part->attention) {
    error = part->attention->output_rel_error;
    softmax_kl = part->attention->softmax_kl;
  }
  if (part != nullptr && part->model && part->model->positions > 0) {
    kld = part->model->kld_mean;
    increase = part->model->ppl_ratio - 1;
  }
  if (part != nullptr) lost = needles_lost(report, *part);
  const bool none_to_lose = lost && !std::isfinite(*lost);
  if (none_to_lose) lost.reset();
  // What the model predicts tells more than what its attention does, but no number tells of a fault.
  const auto decides = [&](std::optional<double> of_attention) {
    return !kld || !std::isfinite(of_attention.value_or(0));
  };
  using T = VerifyThresholds;
  return {
      {"output_rel_error", "attention output error", "--max-output-error", &T::max_output_error, error, decides(error)},
      {"softmax_kl", "softmax KL", "--max-softmax-kl", &T::max_softmax_kl, softmax_kl, decides(softmax_kl)},
      {"kld_mean", "model KL", "--max-kld", &T::max_kld, kld},
      {"ppl_increase", "relative perplexity increase", "--max-ppl-increase", &T::max_ppl_increase, increase},
      {"needles_lost", "share of the needles lost", "--max-needles-lost", &T::max_needles_lost, lost, true,
       none_to_lose ? "bf16 itself found no needle" : nullptr}};
}

/// Of a part that fails its structure checks nothing need be measured.
void hold(VerifyReport& report, PartReport& part, bool sound, const Held& held, const VerifyThresholds& given,
          bool with_defaults) {
  const bool is_given = (given.*held.limit).has_value();
  std::optional<double> limit = given.*held.limit;
  if (!limit && with_defaults && held.by_default) limit = part.default_limits.*held.limit;
  if (!limit) return;
  if (!held.value) {
    if (!is_given || !sound) return;
    const std::string why = held.none != nullptr ? held.none : held.words + std::string(" was not measured");
    return part.reasons.push_back(why + " (" + held.option + ")");
  }
  report.limits.push_back(
      {part.name, held.figure, *held.value, *limit, is_given, is_given ? "" : part.default_limits.measured_on});
  if (*held.value <= *limit) return;
  part.reasons.push_back(
      std::string(held.words) + " " + text_of(*held.value) + " is above " +
      (is_given ? held.option + (" " + text_of(*limit)) : text_of(*limit) + ", the default (" + held.option + ")"));
}

/// Methods that take more bits may be better.
void warn_if_worse(VerifyReport& report, const std::string& prefix, const MethodReport& own,
                   const MethodReport& other) {
  if (other.kind != MethodKind::kBaseline || other.bits.fp16_at_context > own.bits.fp16_at_context + 1e-9) return;
  const auto warn = [&](const char* what, double mine, double theirs) {
    if (mine <= theirs) return;
    report.warnings.push_back(
        fmt::format("{}worse than {}: {} {:.4g} against {:.4g}", prefix, other.name, what, mine, theirs));
  };
  if (own.attention && other.attention) {
    warn("softmax KL", own.attention->softmax_kl, other.attention->softmax_kl);
    warn("attention output error", own.attention->output_rel_error, other.attention->output_rel_error);
  }
  if (own.model && other.model) warn("model KL", own.model->kld_mean, other.model->kld_mean);
}

void warn_of_unknowns(VerifyReport& report) {
  std::map<std::string, std::pair<int, std::string>> unknown;
  for (const Check& check : report.checks) {
    if (check.ok) continue;
    const bool several = report.parts.size() > 1 && !check.part.empty();
    auto& [count, message] = unknown[(several ? check.part + ": " : "") + check.name];
    if (count++ == 0) message = check.message;
  }
  for (const auto& [name, entry] : unknown) {
    const std::string times = entry.first > 1 ? fmt::format(" ({} times)", entry.first) : "";
    report.warnings.push_back(fmt::format("{} is unknown{}: {}", name, times, entry.second));
  }
}

/// That of the readers; of a file that nobody reads, that of what is there.
Verdict overall(const VerifyReport& report) {
  if (!structure_ok(report)) return Verdict::kRejected;
  bool accepted = false, rejected = false;
  for (const PartReport& part : report.parts) {
    const bool read = std::ranges::any_of(report.readers, [&](const auto& each) { return each.second == part.name; });
    if (!read && !report.readers.empty()) continue;
    accepted = accepted || part.verdict == Verdict::kAccepted;
    rejected = rejected || part.verdict == Verdict::kRejected;
  }
  if (rejected && (!accepted || report.chosen_readers)) return Verdict::kRejected;
  return accepted ? Verdict::kAccepted : Verdict::kNotMeasured;
}

std::vector<std::string_view> blocks_of(std::string_view sequence) {
  std::vector<std::string_view> blocks;
  for (; sequence.size() >= CalibrationData::kBlockDigits; sequence.remove_prefix(CalibrationData::kBlockDigits)) {
    blocks.push_back(sequence.substr(0, CalibrationData::kBlockDigits));
  }
  return blocks;
}

std::set<std::string_view> blocks_of(const CalibrationData& fitted) {
  std::set<std::string_view> known;
  for (const std::string& sequence : fitted.blocks) {
    for (const std::string_view block : blocks_of(sequence)) known.insert(block);
  }
  return known;
}

/// Blocks of the sequence, from any offset on, that are known.
std::size_t count_known(std::span<const std::int32_t> ids, const std::set<std::string_view>& known) {
  constexpr std::size_t kBlock = CalibrationData::kBlockTokens;
  std::size_t found = 0;
  for (std::size_t begin = 0; begin == 0 || begin + kBlock <= ids.size();) {
    const bool same = known.contains(block_hash(ids.subspan(begin, std::min(kBlock, ids.size()))));
    found += same ? 1 : 0;
    begin += same ? kBlock : 1;
  }
  return found;
}

}  // namespace

VerifyThresholds int2_thresholds() { return {0.08, 0.08, 0.045, 0.035, kMostNeedlesLost, kDefaultLimitsMeasuredOn}; }

VerifyThresholds coded_thresholds(double bits) {
  constexpr double kMeasuredBits = 2.25;
  const VerifyThresholds most = int2_thresholds();
  const double scale = std::pow(4.0, kMeasuredBits - bits), felt = std::max(scale, 1.0);
  return {std::min(0.03 * scale, *most.max_output_error),
          std::min(0.04 * scale, *most.max_softmax_kl),
          std::min(0.012 * felt, *most.max_kld),
          std::min(0.012 * felt, *most.max_ppl_increase),
          kMostNeedlesLost,
          kCodedLimitsMeasuredOn};
}

void judge(VerifyReport& report, const VerifyThresholds& given, bool default_limits) {
  const std::vector<std::string> of_structure = structure_reasons(report, "");
  report.reasons.insert(report.reasons.end(), of_structure.begin(), of_structure.end());
  const std::vector<std::string> of_all = report.reasons;
  for (PartReport& part : report.parts) {
    const std::string prefix = prefix_of(report, part);
    const MethodReport* own = method_of(report, part);
    const std::size_t first = report.limits.size();
    part.reasons = structure_reasons(report, part.name);
    const bool sound = of_structure.empty() && part.reasons.empty();
    for (const Held& held : held_figures(report, own)) hold(report, part, sound, held, given, default_limits);
    for (const std::string& reason : part.reasons) report.reasons.push_back(prefix + reason);
    part.reasons.insert(part.reasons.begin(), of_all.begin(), of_all.end());
    part.verdict = !part.reasons.empty()           ? Verdict::kRejected
                   : report.limits.size() == first ? Verdict::kNotMeasured
                                                   : Verdict::kAccepted;
    if (own == nullptr) continue;
    for (const MethodReport& other : report.methods) warn_if_worse(report, prefix, *own, other);
    if (report.limits.size() == first && (own->attention || own->model)) {
      report.warnings.push_back(prefix + "no figure of the set is held to a limit, so that none can accept it");
    }
  }
  report.verdict = overall(report);
  warn_of_unknowns(report);
}

std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted,
                                                std::span<const TokenSequence> measured) {
  if (fitted.blocks.empty() || measured.empty()) return std::nullopt;
  const std::set<std::string_view> known = blocks_of(fitted);
  std::int64_t seen = 0;
  for (const TokenSequence& sequence : measured) {
    const std::size_t found = count_known(sequence, known);
    seen += found > 0 && 2 * found >= sequence.size() / CalibrationData::kBlockTokens ? 1 : 0;
  }
  return seen;
}

std::optional<std::int64_t> sequences_fitted_on(const CalibrationData& fitted, const CalibrationData& measured) {
  if (!measured.data_sha256.empty() && measured.data_sha256 == fitted.data_sha256) return measured.sequences;
  if (fitted.blocks.empty() || measured.blocks.empty()) return std::nullopt;
  const std::set<std::string_view> known = blocks_of(fitted);
  std::int64_t seen = 0;
  for (const std::string& sequence : measured.blocks) {
    const std::vector<std::string_view> blocks = blocks_of(sequence);
    std::size_t found = 0;
    for (const std::string_view block : blocks) found += known.contains(block) ? 1 : 0;
    seen += found > 0 && 2 * found >= blocks.size() ? 1 : 0;
  }
  return seen;
}

void judge_held_out(VerifyReport& report, const std::string& what, std::optional<std::int64_t> seen,
                    std::int64_t sequences, bool required) {
  Json& data = report.data[what];
  data["sequences"] = sequences;
  data["sequences_fitted_on"] = seen ? Json(*seen) : Json(nullptr);
  data["held_out"] = seen ? Json(*seen == 0) : Json(nullptr);
  if (seen == 0 || (!seen && !required)) return;
  const std::string text =
      seen ? what + " is measured on " + std::to_string(*seen) + " of " + plural(sequences, "sequence") +
                 " that the set was fitted on: give other text"
           : "nothing tells whether " + what + " is measured on text that the set was fitted on: fit it again";
  (required ? report.reasons : report.warnings).push_back(text + (required ? " (--require-held-out)" : ""));
}

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

}  // namespace oscar::verify
