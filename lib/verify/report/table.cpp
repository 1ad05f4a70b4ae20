// SPDX-License-Identifier: MIT
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <ranges>

#include "base/text.hpp"
#include "verify/report/report.hpp"

namespace oscar {
namespace {

using Cell = std::function<std::string(const MethodReport&)>;

template <class Member>
Cell attention_cell(Member member, const char* format) {
  return [=](const MethodReport& m) {
    return m.attention ? fmt::format(fmt::runtime(format), (*m.attention).*member) : "";
  };
}

/// " ±0.0012": half of what holds 95 % of resampled figures.
std::string doubt(const Intervals& intervals, const char* name, const char* format) {
  const auto found = intervals.find(name);
  if (found == intervals.end()) return "";
  return " ±" + fmt::format(fmt::runtime(format), (found->second.high - found->second.low) / 2);
}

template <class Member>
Cell model_cell(Member member, const char* format) {
  return [=](const MethodReport& m) {
    return m.model && m.model->positions > 0 ? fmt::format(fmt::runtime(format), (*m.model).*member) : "";
  };
}

std::string retrieval_cell(const MethodReport& m) {
  if (!m.model || !m.model->retrieval) return "";
  return fmt::format("{}/{}", m.model->needle_hits, m.model->needles);
}

/// "0.931, 12/48": the share of tokens that are right, and the quotations that are right to the end.
std::string quotes_cell(const MethodReport& m) {
  if (!m.model || !m.model->quotes) return "";
  const QuoteMetrics& q = *m.model->quotes;
  return fmt::format("{:.3f}, {}/{}", q.tokens_right, q.right_to_the_end, q.quotes);
}

}  // namespace

std::vector<std::vector<std::string>> table_of(const VerifyReport& report) {
  const std::vector<std::pair<std::string, Cell>> columns{
      {"method", [](const MethodReport& m) { return m.name; }},
      {"windows",
       [&](const MethodReport& m) {
         // Where all methods have the same, the report says so once.
         return m.windows == report.windows ? "" : fmt::format("{}+{}", m.windows.sink, m.windows.recent);
       }},
      {"bits fp16", [](const MethodReport& m) { return fmt::format("{:.2f}", m.bits.fp16_at_context); }},
      {"bits fp32", [](const MethodReport& m) { return fmt::format("{:.2f}", m.bits.fp32_at_context); }},
      {"attention error", attention_cell(&AttentionMetrics::output_rel_error, "{:.3g}")},
      {"softmax KL", attention_cell(&AttentionMetrics::softmax_kl, "{:.3g}")},
      {"ppl", model_cell(&ModelMetrics::ppl, "{:.3f}")},
      {"KLD",
       [kld = model_cell(&ModelMetrics::kld_mean, "{:.4f}")](const MethodReport& m) {
         const std::string text = kld(m);
         return text.empty() ? text : text + doubt(m.model->intervals, "kld_mean", "{:.4f}");
       }},
      {"same top", model_cell(&ModelMetrics::same_top, "{:.3f}")},
      {"retrieval", retrieval_cell},
      {"quoted", quotes_cell}};
  std::vector<std::vector<std::string>> rows(report.methods.size() + 1);
  for (const auto& [name, cell] : columns) {
    std::vector<std::string> cells;
    for (const MethodReport& method : report.methods) cells.push_back(cell(method));
    if (std::all_of(cells.begin(), cells.end(), [](const std::string& text) { return text.empty(); })) continue;
    rows[0].push_back(name);
    for (std::size_t i = 0; i < cells.size(); ++i) rows[i + 1].push_back(cells[i].empty() ? "-" : cells[i]);
  }
  return rows;
}

namespace {

/// "quantised: 71.2 % of the keys that attention reads, …"; empty if nothing was measured.
std::string quantised_text(const Json& data) {
  std::string text;
  const auto add = [&](const char* part, const char* member, const char* words) {
    const Json share = data.contains(part) ? data[part].value(member, Json()) : Json();
    if (!share.is_number()) return;
    text += fmt::format("{}{:.1f} % of the keys that {} read", text.empty() ? "quantised: " : ", ",
                        100 * share.get<double>(), words);
  };
  add("attention", "quantised_share", "queries of attention");
  add("model", "quantised_share", "predictions of the model");
  add("model", "needles_quantised_share", "answers of needles");
  add("model", "quotes_quantised_share", "quotations");
  return text.empty() ? text : text + "\n";
}

/// "keys of layer 0, keys of layer 27, values of layer 3": where errors are largest.
std::string worst_of(const StockPlan& plan) {
  std::vector<std::pair<double, std::string>> sides;
  for (const StockLayer& layer : plan.layers) {
    sides.emplace_back(layer.key_error, fmt::format("keys of layer {}", layer.layer));
    sides.emplace_back(layer.value_error, fmt::format("values of layer {}", layer.layer));
  }
  std::ranges::stable_sort(sides, std::ranges::greater(), &decltype(sides)::value_type::first);
  sides.resize(std::min<std::size_t>(sides.size(), 3));
  return joined(std::views::values(sides));
}

/// What stays in bfloat16.
std::string left_in(const StockMixture& mixture) {
  if (mixture.layers.empty()) return "as it is";
  if (!mixture.values) return "keys in bfloat16";
  return mixture.keys ? plural(mixture.layers.size(), "layer") + " in bfloat16" : "values in bfloat16";
}

/// Each stock cache as it is, what hurts, and the settings that keep the model.
std::string stock_text(const std::vector<StockPlan>& stock) {
  std::string text;
  for (const StockPlan& plan : stock) {
    const auto line = [&](const StockMixture& mixture) {
      return fmt::format("{}, {:.2f} bits: KL {:.3g}", left_in(mixture), mixture.bits, mixture.model.kld_mean);
    };
    const StockMixture *best = plan.best(), *whole = &plan.tried.front();
    text += fmt::format("stock cache {}: {}\n", plan.name, line(*whole));
    if (best != whole) text += "  hurt most: " + worst_of(plan) + "\n";
    if (best != nullptr && best != whole) text += "  " + line(*best) + "\n";
    text += best != nullptr
                ? "  " + best->setting + "\n"
                : fmt::format("  nothing that the engine can leave in bfloat16 brings the KL to {:.3g}; {}\n",
                              plan.limit, line(plan.tried.back()));
  }
  return text;
}

std::string in_words(Verdict verdict) { return verdict == Verdict::kNotMeasured ? "not measured" : name_of(verdict); }

/// A line for each reader.
std::string readers_text(const VerifyReport& report) {
  std::string text;
  for (const auto& [reader, name] : report.readers) {
    const PartReport& part = *std::ranges::find(report.parts, name, &PartReport::name);
    text += fmt::format("{} reads {}: {}\n", reader, name, in_words(part.verdict));
  }
  return text;
}

}  // namespace

std::string summary_of(const VerifyReport& report) {
  int ok = 0;
  int failed = 0;
  int unknown = 0;
  for (const Check& check : report.checks) ++(check.ok ? (*check.ok ? ok : failed) : unknown);
  std::string text = stock_text(report.stock);
  if (!text.empty() && report.parts.empty()) return text;  // there is no set
  if (!report.methods.empty()) {
    text += fmt::format("bits: per element of a context of {} tokens, windows included\n",
                        report.methods.front().bits.context);
  }
  text += quantised_text(report.data);
  text += fmt::format("structure: {} ok, {} unknown, {} failed\n", ok, unknown, failed);
  for (const std::string& warning : report.warnings) text += "warning: " + warning + "\n";
  for (const std::string& reason : report.reasons) text += "reason: " + reason + "\n";
  text += readers_text(report) + "verdict: " + in_words(report.verdict);
  if (report.verdict == Verdict::kNotMeasured) {
    text += " (no figure of the set was held to a limit: give --model with --text or --tokens, or --dump)";
  }
  return text + "\n";
}

}  // namespace oscar
