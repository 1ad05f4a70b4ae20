// SPDX-License-Identifier: MIT
#include "verify/report/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/version.hpp"
#include "set/manifest.hpp"
#include "set/set.hpp"

namespace oscar {
namespace {

/// JSON has no infinities; an unbounded or undefined figure is null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
Json number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

Json to_json(Windows windows) { return {{"sink", windows.sink}, {"recent", windows.recent}}; }

Json to_json(const Check& check) {
  return {{"part", check.part.empty() ? Json(nullptr) : Json(check.part)},
          {"name", check.name},
          {"layer", check.layer ? Json(*check.layer) : Json(nullptr)},
          {"target", check.target.empty() ? Json(nullptr) : Json(check.target)},
          {"value", number(check.value)},
          {"limit", number(check.limit)},
          {"ok", check.ok ? Json(*check.ok) : Json(nullptr)},
          {"status", !check.ok ? "unknown" : (*check.ok ? "ok" : "failed")},
          {"message", check.message}};
}

Json to_json(const Limit& limit) {
  Json json{{"part", limit.part},
            {"figure", limit.figure},
            {"value", number(limit.value)},
            {"limit", number(limit.limit)},
            {"origin", limit.given ? "given" : "default"}};
  if (!limit.given) json["measured_on"] = limit.measured_on;
  return json;
}

Json to_json(const AttentionMetrics& m) {
  return {{"k_sqnr_db", number(m.k_sqnr_db)},
          {"v_sqnr_db", number(m.v_sqnr_db)},
          {"logit_nmse", number(m.logit_nmse)},
          {"softmax_kl", number(m.softmax_kl)},
          {"softmax_kl_p99", number(m.softmax_kl_p99)},
          {"output_rel_error", number(m.output_rel_error)},
          {"output_rel_error_k_only", number(m.output_rel_error_k_only)},
          {"output_rel_error_v_only", number(m.output_rel_error_v_only)},
          {"output_cosine", number(m.output_cosine)},
          {"output_cosine_k_only", number(m.output_cosine_k_only)},
          {"output_cosine_v_only", number(m.output_cosine_v_only)},
          {"needle_mass_kept", number(m.needle_mass_kept)}};
}

/// Five digits: there are many heads.
Json rounded(const Json& value) {
  return value.is_number() ? Json(std::strtod(fmt::format("{:.5g}", value.get<double>()).c_str(), nullptr)) : value;
}

/// An array over heads for each figure.
Json columns_of(const std::vector<AttentionMetrics>& heads) {
  Json columns = Json::object();
  for (const AttentionMetrics& head : heads) {
    const Json figures = to_json(head);
    for (const auto& [name, value] : figures.items()) columns[name].push_back(rounded(value));
  }
  return columns;
}

Json to_json(const Intervals& intervals) {
  Json json = Json::object();
  for (const auto& [name, interval] : intervals) json[name] = {number(interval.low), number(interval.high)};
  return json;
}

Json to_json(const PositionBin& bin) {
  return {{"begin", bin.begin}, {"end", bin.end}, {"kld_mean", number(bin.kld_mean)}, {"positions", bin.positions}};
}

Json to_json(const DepthBin& bin) {
  return {{"depth", {bin.depth.low, bin.depth.high}}, {"hits", bin.hits}, {"needles", bin.needles}};
}

Json to_json(const LayerReport& layer) {
  return {{"layer", layer.layer}, {"attention", to_json(layer.attention)}, {"heads", columns_of(layer.heads)}};
}

Json to_json(const StockLayer& layer) {
  return {{"layer", layer.layer},
          {"key_error", number(layer.key_error)},
          {"value_error", number(layer.value_error)},
          {"k_scale", layer.k_scale},
          {"v_scale", layer.v_scale}};
}

Json to_json(const StockMixture& mixture);
Json to_json(const StockPlan& plan);

template <class Item>
Json list_of(const std::vector<Item>& items) {
  Json list = Json::array();
  for (const Item& item : items) list.push_back(to_json(item));
  return list;
}

Json to_json(const QuoteMetrics& q) {
  return {{"quotes", q.quotes},
          {"right_to_the_end", q.right_to_the_end},
          {"tokens_right", q.tokens_right},
          {"tokens_until_wrong", q.tokens_until_wrong},
          {"nll", number(q.nll)}};
}

Json to_json(const ModelMetrics& m) {
  return {{"ppl", number(m.ppl)},
          {"ppl_ratio", number(m.ppl_ratio)},
          {"ppl_ratio_error", number(m.ppl_ratio_error)},
          {"kld_mean", number(m.kld_mean)},
          {"kld_error", number(m.kld_error)},
          {"kld_median", number(m.kld_median)},
          {"kld_p90", number(m.kld_p90)},
          {"kld_p95", number(m.kld_p95)},
          {"kld_p99", number(m.kld_p99)},
          {"kld_p999", number(m.kld_p999)},
          {"kld_max", number(m.kld_max)},
          {"kld_by_position", list_of(m.kld_by_position)},
          {"same_top", number(m.same_top)},
          {"mean_dp", number(m.mean_dp)},
          {"rms_dp", number(m.rms_dp)},
          {"positions", m.positions},
          {"retrieval", number(m.retrieval)},
          {"retrieval_by_depth", list_of(m.retrieval_by_depth)},
          {"needle_hits", m.needle_hits},
          {"needles", m.needles},
          {"needle_nll", number(m.needle_nll)},
          {"quotes", m.quotes ? to_json(*m.quotes) : Json(nullptr)},
          {"intervals", to_json(m.intervals)}};
}

Json to_json(const MethodReport& method) {
  Json attention = method.attention ? to_json(*method.attention) : Json(nullptr);
  if (method.attention) attention["intervals"] = to_json(method.attention_intervals);
  return {{"name", method.name},
          {"kind", name_of(method.kind)},
          {"description", method.description},
          {"windows", to_json(method.windows)},
          {"bits_per_element",
           {{"fp16_params", number(method.bits.fp16_params)},
            {"fp32_params", number(method.bits.fp32_params)},
            {"at_context", number(method.bits.fp16_at_context)},
            {"at_context_fp32_params", number(method.bits.fp32_at_context)},
            {"context", method.bits.context}}},
          {"attention", std::move(attention)},
          {"layers", list_of(method.layers)},
          {"model", method.model ? to_json(*method.model) : Json(nullptr)}};
}

Json to_json(const StockMixture& mixture) {
  Json sides = Json::array();
  if (mixture.keys) sides.push_back("key");
  if (mixture.values) sides.push_back("value");
  return {{"layers", mixture.layers},
          {"sides", std::move(sides)},
          {"setting", mixture.setting},
          {"bits", mixture.bits},
          {"model", to_json(mixture.model)}};
}

Json to_json(const StockPlan& plan) {
  const StockMixture* best = plan.best();
  return {{"name", plan.name},
          {"description", plan.description},
          {"limit", plan.limit},
          {"layers", list_of(plan.layers)},
          {"tried", list_of(plan.tried)},
          {"plan", best != nullptr ? to_json(*best) : Json(nullptr)}};
}

/// By name.
Json parts_of(const VerifyReport& report) {
  Json parts = Json::object();
  for (const PartReport& part : report.parts) {
    parts[part.name] = part.facts;
    parts[part.name].update({{"bits", number(part.bits)}, {"verdict", name_of(part.verdict)}});
  }
  return parts;
}

/// By reader: the verdict of the part that it reads.
Json verdicts_of(const VerifyReport& report) {
  Json readers = Json::object();
  for (const auto& [reader, name] : report.readers) {
    const PartReport& part = *std::ranges::find(report.parts, name, &PartReport::name);
    readers[reader] = {{"part", name}, {"verdict", name_of(part.verdict)}, {"reasons", part.reasons}};
  }
  return readers;
}

}  // namespace

const StockMixture* StockPlan::best() const {
  const auto found = std::ranges::find_if(tried, [&](const auto& each) { return each.model.kld_mean <= limit; });
  return found == tried.end() ? nullptr : &*found;
}

bool structure_ok(const VerifyReport& report) {
  return std::none_of(report.checks.begin(), report.checks.end(), [](const Check& check) { return check.ok == false; });
}

Json to_json(const VerifyReport& report) {
  Json set = report.set;
  set["parts"] = parts_of(report);
  Json methods = Json::array();
  for (const MethodReport& method : report.methods) methods.push_back(to_json(method));
  return {{"schema", "oscar.verify_report.v1"},
          {"oscar_version", kVersion},
          {"set", std::move(set)},
          {"other_model", report.other_model},
          {"data", report.data},
          {"windows", to_json(report.windows)},
          {"precision", report.precision == Precision::kServing ? "serving" : "fp32"},
          {"structure", {{"ok", structure_ok(report)}, {"checks", list_of(report.checks)}}},
          {"methods", std::move(methods)},
          {"limits", list_of(report.limits)},
          {"stock", list_of(report.stock)},
          {"verdict", name_of(report.verdict)},
          {"readers", verdicts_of(report)},
          {"reasons", report.reasons},
          {"warnings", report.warnings}};
}

}  // namespace oscar
