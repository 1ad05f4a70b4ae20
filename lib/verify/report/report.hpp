// SPDX-License-Identifier: MIT
// What verify found, as values; to_json() gives the document of schemas/oscar.verify_report.v1.schema.json.
// It also makes a report as one file that any browser shows, on a phone and in print too: tables, and plots by
// Chart.js, which the file carries with its licence. It fetches nothing. Non-goal: drawing.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "kernels/types.hpp"
#include "measure/figures.hpp"
#include "measure/kv_method.hpp"
#include "set/manifest.hpp"

namespace oscar {

/// One fact about the set that can be right or wrong.
struct Check {
  std::string name;             // "orthogonality"
  std::optional<int> layer;     // none: the whole set
  std::string target;           // "key", "value", or empty for both
  std::optional<double> value;  // what was measured
  std::optional<double> limit;  // and what it is held against
  std::optional<bool> ok;       // none: it cannot be decided from what was given ("unknown")
  std::string message;          // in words; for "unknown", what would decide it
  std::string part = {};        // of the set; empty: the whole set
};

/// A figure of a part that its verdict depends on.
struct Limit {
  std::string part;
  std::string figure;  // "kld_mean"; "ppl_increase" is ppl_ratio - 1
  double value = 0, limit = 0;
  bool given = false;       // by the user; else the default for the part's bits
  std::string measured_on;  // the models that a default limit comes from; empty if the limit is given
};

/// A part whose figures are above these is rejected.
struct VerifyThresholds {
  std::optional<double> max_output_error;  // output_rel_error, pooled
  std::optional<double> max_softmax_kl;    // softmax_kl, pooled
  std::optional<double> max_kld;           // kld_mean
  std::optional<double> max_ppl_increase;  // ppl_ratio - 1
  std::optional<double> max_needles_lost;  // of those that the model finds with nothing quantised: share
  std::string measured_on{};               // the models that default limits come from
};

struct LayerReport {
  int layer = 0;
  AttentionMetrics attention;
  std::vector<AttentionMetrics> heads;  // query heads, each with the signal-to-noise ratios of its KV head
};

struct MethodReport {
  std::string name;
  MethodKind kind = MethodKind::kBaseline;
  std::string description;
  Windows windows;
  BitsPerElement bits;
  std::optional<AttentionMetrics> attention;
  Intervals attention_intervals;
  std::vector<LayerReport> layers;
  std::optional<ModelMetrics> model;
};

/// The eigenvalues of one layer and side over the largest, descending, mean over heads.
struct Spectra {
  std::string part;
  int layer = 0;
  std::string target;
  std::vector<double> values;
};

/// The clip ratios of one layer: of all KV heads, or of each.
struct LayerClips {
  std::string part;
  int layer = 0;
  std::vector<double> key, value;
};

/// How many channels of one KV head of the coded cache are stored in 0, 1, … 8 bits.
struct HeadPlan {
  int layer = 0;
  std::string target;
  int head = 0;
  std::vector<int> channels;
};

struct PartReport {
  std::string name;
  Json facts = Json::object();      // recipe, objectives, layers …
  double bits = 0;                  // of a code: 2 of INT2; of the coded cache all bits of a value
  VerifyThresholds default_limits;  // for these bits
  Verdict verdict = Verdict::kNotMeasured;
  std::vector<std::string> reasons;  // why it was rejected: its own, and those of the whole set
};

/// What a stock cache does to one layer.
struct StockLayer {
  int layer = 0;
  double key_error = 0, value_error = 0;  // output_rel_error where only keys, or values, are quantised
  double k_scale = 0, v_scale = 0;        // the largest magnitude over that of e4m3
};

/// A stock cache of which some layers or one side stays in bfloat16.
struct StockMixture {
  std::vector<int> layers;            // left in bfloat16:
  bool keys = false, values = false;  // these sides of them
  std::string setting;                // options of the engine
  double bits = 0;                    // per element
  ModelMetrics model;
};

/// A cache that an engine ships, and how little of it has to stay in bfloat16.
struct StockPlan {
  std::string name, description;
  double limit = 0;                 // that kld_mean is to stay within
  std::vector<StockLayer> layers;   // those that were measured
  std::vector<StockMixture> tried;  // the least left in bfloat16 first

  /// The first that stays within the limit; null: none.
  [[nodiscard]] const StockMixture* best() const;
};

struct VerifyReport {
  Json set = Json::object();   // path, model, calibration
  Json data = Json::object();  // what was measured on
  Windows windows;
  Precision precision = Precision::kServing;
  std::vector<PartReport> parts;               // those that were looked at
  std::map<std::string, std::string> readers;  // and who reads which of them
  bool chosen_readers = false;                 // only their parts were looked at, and all of them must be fit to serve
  bool layers_left_out = false;                // attention was not measured in all
  bool all_parts = true;                       // none was left out
  Json manifest;                               // the set's, as it was examined; null: it has none of ours
  std::vector<Check> checks;
  std::vector<MethodReport> methods;  // a part's has its name
  std::vector<Limit> limits;
  std::vector<Spectra> spectra;   // for people to look at; the set itself has them
  std::vector<LayerClips> clips;  // the same
  std::vector<HeadPlan> plan;     // the same
  std::vector<StockPlan> stock;   // says nothing of the set
  Verdict verdict = Verdict::kNotMeasured;
  /// It was held against a model, or data of a model, that is not its own: that says nothing about the set.
  bool other_model = false;
  std::vector<std::string> reasons;   // why it, or a part, was rejected
  std::vector<std::string> warnings;  // what a reader should know before trusting or using it
};

/// False if a check failed; unknown checks do not count.
[[nodiscard]] bool structure_ok(const VerifyReport& report);
[[nodiscard]] Json to_json(const VerifyReport& report);
/// Lets the manifest of one of our sets keep its verdicts, data and pooled figures, while the other files and their
/// hashes stay as they are: replaces "verification" in <folder>/manifest.json, atomically (record.cpp). Returns why it
/// did not; empty: it did. Unless it replaces_more, figures that say less do not replace those that the manifest keeps;
/// none go into another set than was examined. Throws DataError if there is no manifest of ours or a file is not what
/// it lists, IoError if it cannot be written.
[[nodiscard]] std::string record_verification(const std::filesystem::path& folder, const VerifyReport& report,
                                              bool replaces_more = false);

// The report as people read it on a terminal (table.cpp).

/// A header row and one row per method; columns that nothing was measured for are left out. For format_table().
[[nodiscard]] std::vector<std::vector<std::string>> table_of(const VerifyReport& report);
/// "structure: 40 ok, 3 unknown, 0 failed", warnings, reasons and verdicts.
[[nodiscard]] std::string summary_of(const VerifyReport& report);

/// Throws UsageError if this build has no plotting library.
void require_html_report();

/// What a reader wants to know of a report, and the report itself must not hold: it has the same bytes in every run.
struct ReportOrigin {
  std::string command;  // without secrets
  std::string date;
};

/// UTF-8, whatever bytes names are of. Throws as require_html_report().
[[nodiscard]] std::string html_report(const VerifyReport& report, const ReportOrigin& origin);

/// The parts of the page, as they were when this was built: html, style, script, and, where Chart.js was installed,
/// library and licence.
[[nodiscard]] const std::map<std::string, std::string, std::less<>>& page_parts();

}  // namespace oscar
