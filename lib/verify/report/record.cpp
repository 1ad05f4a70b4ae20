// SPDX-License-Identifier: MIT
#include "base/files.hpp"
#include "base/text.hpp"
#include "set/manifest.hpp"
#include "verify/report/report.hpp"

namespace oscar {
namespace {

constexpr const char* kRemedy = " (--record replaces it)";

/// A number of the figures' data, 0 where it has none.
std::int64_t count(const Json& data, const char* of, const char* name) {
  const Json found = member(member(data, of), name);
  return found.is_number_integer() ? found.get<std::int64_t>() : 0;
}

/// What the manifest has of the data of its summary, and the report less: "9 layers"; empty: nothing.
std::string kept_of_data(const Json& had, const Json& data) {
  const char* const decides = count(data, "model", "tokens") > 0 ? "model" : "attention";
  const auto is_held_out = [&](const Json& of) { return member(member(of, decides), "held_out") == true; };
  if (is_held_out(had) != is_held_out(data)) return is_held_out(data) ? "" : "held-out text";
  for (const auto& [of, name, one, many] : {std::tuple{"model", "tokens", "token", ""},
                                            {"model", "needles", "needle", ""},
                                            {"model", "quotes", "quotation", ""},
                                            {"attention", "layers", "layer", ""},
                                            {"attention", "tokens_per_layer", "token", ""},
                                            {"attention", "queries_per_layer", "query", "queries"}}) {
    if (std::string_view(of) == "attention" && std::string_view(decides) == "model") continue;
    if (count(had, of, name) > count(data, of, name)) return plural(count(had, of, name), one, many);
  }
  return "";
}

/// Why the manifest, which keeps the summary `recorded` or none, should not keep the report's; empty: it should. What
/// was measured and rejected goes in. replaces_more: also over what says more.
std::string why_unrecorded(const Json& recorded, const VerifyReport& report, bool replaces_more) {
  if (report.other_model) return "the set is of another model than what it was held against";
  if (!report.all_parts) return "--for left out parts of the set; leave it out, or fit a set --for these readers";
  const bool measured = report.data.contains("model") || report.data.contains("attention");
  if (measured && to_json(report).at("windows") != report.set.at("windows")) {
    return "it was measured in other windows than the set's (--sink, --recent)";
  }
  if (measured && report.precision != Precision::kServing) {
    return "it was measured in float32, not as servers round (--precision)";
  }
  if (report.verdict == Verdict::kRejected && (measured || !structure_ok(report))) return "";
  if (report.layers_left_out && count(report.data, "model", "tokens") == 0) {
    return "attention was not measured in all layers";
  }
  if (replaces_more) return "";
  const Json had = member(recorded, "data"), verdict = member(recorded, "verdict");
  const bool was_measured = member(had, "model").is_object() || member(had, "attention").is_object();
  const bool judged =  // what the structure alone rejected, it can clear
      verdict == name_of(Verdict::kAccepted) || (was_measured && verdict == name_of(Verdict::kRejected));
  if (judged && (!measured || report.verdict == Verdict::kNotMeasured)) {
    return std::string("the manifest keeps a verdict, and there is none now") + kRemedy;
  }
  const std::string kept = kept_of_data(had, report.data);
  return kept.empty() ? "" : "the manifest keeps figures of " + kept + kRemedy;
}

/// What the manifest keeps.
Json summary_for_manifest(const VerifyReport& report) {
  const Json whole = to_json(report);
  Json summary = Json::object();
  for (const char* name :
       {"schema", "oscar_version", "verdict", "readers", "reasons", "warnings", "limits", "data", "windows"}) {
    summary[name] = whole[name];
  }
  summary["methods"] = Json::object();
  for (Json entry : whole["methods"]) {
    entry.erase("layers");
    const std::string method = entry["name"];
    summary["methods"][method] = std::move(entry);
  }
  return summary;
}

}  // namespace

std::string record_verification(const std::filesystem::path& folder, const VerifyReport& report, bool replaces_more) {
  const std::filesystem::path path = folder / "manifest.json";
  Json manifest = read_json(path), examined = report.manifest;
  validate_json(manifest, kSetSchema, path.string());
  check_listed_files(folder, manifest);
  const Json recorded = member(manifest, "verification");
  manifest.erase("verification");
  examined.erase("verification");
  if (manifest != examined) return "the set was replaced while it was measured";
  if (std::string why = why_unrecorded(recorded, report, replaces_more); !why.empty()) return why;
  manifest["verification"] = summary_for_manifest(report);
  validate_json(manifest, kSetSchema, path.string());
  write_json(path, manifest);
  return "";
}

}  // namespace oscar
