// SPDX-License-Identifier: MIT
// What verify found, as values; to_json() gives the document of schemas/oscar.verify_report.v1.schema.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "measure/figures.hpp"
#include "measure/kv_method.hpp"
#include "kernels/types.hpp"
#include "set/verdict.hpp"

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
};

/// A figure of the set that its verdict depends on.
struct Limit {
  std::string figure;  // "kld_mean"; "ppl_increase" is ppl_ratio - 1
  double value = 0, limit = 0;
  bool given = false;       // by the user; else the default for the set's bits
  std::string measured_on;  // the models that a default limit comes from; empty if the limit is given
};

/// A set whose figures are above these is rejected.
struct VerifyThresholds {
  std::optional<double> max_output_error;  // output_rel_error, pooled
  std::optional<double> max_softmax_kl;    // softmax_kl, pooled
  std::optional<double> max_kld;           // kld_mean
  std::optional<double> max_ppl_increase;  // ppl_ratio - 1
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
  int layer = 0;
  std::string target;
  std::vector<double> values;
};

/// The clip ratios of one layer: of all KV heads, or of each.
struct LayerClips {
  int layer = 0;
  std::vector<double> key, value;
};

/// How many channels of one KV head of a coded set are stored in 0, 1, … 8 bits.
struct HeadPlan {
  int layer = 0;
  std::string target;
  int head = 0;
  std::vector<int> channels;
};

struct VerifyReport {
  Json rotation_set = Json::object();  // path, model, objectives, recipe, calibration
  Json data = Json::object();          // what was measured on
  Windows windows;
  Precision precision = Precision::kServing;
  std::vector<Check> checks;
  std::vector<MethodReport> methods;
  double bits_per_code = 0;  // 2 of INT2; of a coded set all bits of a value
  std::vector<Limit> limits;
  std::vector<Spectra> spectra;   // for people to look at; the set itself has them
  std::vector<LayerClips> clips;  // the same
  std::vector<HeadPlan> plan;     // the same
  Verdict verdict = Verdict::kNotMeasured;
  /// It was held against a model, or data of a model, that is not its own: that says nothing about the set.
  bool other_model = false;
  std::vector<std::string> reasons;   // why it was rejected
  std::vector<std::string> warnings;  // what a reader should know before trusting or using it
};

/// False if a check failed; unknown checks do not count.
[[nodiscard]] bool structure_ok(const VerifyReport& report);
[[nodiscard]] Json to_json(const VerifyReport& report);
/// What the manifest of the set keeps: verdict, data, and this set's pooled figures.
[[nodiscard]] Json verification_summary(const VerifyReport& report);

/// Writes it into the manifest of one of our sets, whose other files and their hashes stay as they are. Replaces
/// "verification" in <folder>/manifest.json, atomically. Throws DataError if there is no manifest of ours or a
/// file is not what it lists, IoError if it cannot be written.
void record_verification(const std::filesystem::path& folder, const Json& summary);

// The report as people read it on a terminal (table.cpp).

/// A header row and one row per method; columns that nothing was measured for are left out. For format_table().
[[nodiscard]] std::vector<std::vector<std::string>> table_of(const VerifyReport& report);
/// "structure: 40 ok, 3 unknown, 0 failed", warnings, verdict and reasons.
[[nodiscard]] std::string summary_of(const VerifyReport& report);

}  // namespace oscar
