// SPDX-License-Identifier: MIT
// The judge: structure checks, attention metrics, model metrics, and a verdict with reasons for each reader. Shares no
// code with fit and method. All parts of a set are judged in one run, side by side. A failed structure check or a
// figure above its limit (given, or the default for the part's bits) rejects a part, and the readers that take it;
// figures within limits accept it, and without any it is not measured; everything else that people should know is a
// warning, for example being worse than a plain Hadamard rotation.
//
// Plans for the caches that engines ship: what each does to the model with every token quantised, which layers and
// sides it hurts, and the least that has to stay in bfloat16, as options that the engine has: whole layers in vLLM, the
// keys or the values of all layers in llama.cpp. What goes first into bfloat16 is what makes the largest errors of
// attention outputs by itself; how much of it has to, the model says: each mixture that a plan names was measured.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "measure/predictions/model_metrics.hpp"
#include "model/run/runner.hpp"
#include "moments/statistics.hpp"
#include "verify/report/report.hpp"

namespace oscar {

struct VerifyOptions {
  /// Names of methods (peers/baselines.hpp), or "all", or "none".
  std::vector<std::string> compare{"bf16", "naive", "hadamard_clip", "int4", "fp8"};
  /// Only the parts of these readers (set/set.hpp) are looked at; empty: all parts.
  std::vector<std::string> readers;
  /// Windows of the set, and of all methods; those not given come from the set.
  std::optional<int> sink, recent;
  /// Other methods get the windows that their authors use.
  bool own_windows = false;
  Precision precision = Precision::kServing;
  VerifyThresholds thresholds;
  /// Thresholds that are not given are those of the part's number of bits (verdict.hpp), for what was measured.
  bool default_limits = true;
  /// Queries per layer that attention metrics look at, evenly spread; 0 = all.
  std::int64_t max_queries = 2048;
  /// Reject a set whose figures are not known to come from text that it was not fitted on.
  bool require_held_out = false;
};

/// What to measure on; all optional. Without a source, attention metrics are taken from the model while it reads the
/// texts.
struct VerifyInputs {
  QkvSource* source = nullptr;
  /// Saved sums of data, which tell what moments tell; they keep no rows to measure attention on.
  std::optional<Statistics> statistics;
  ModelRunner* runner = nullptr;
  ModelData model_data;
  /// The layers to measure; empty: all.
  std::vector<int> layers;
};

/// path: a set's folder, a folder of bare .pt files, or one .pt file. Throws UsageError for an
/// unknown method, or a reader that the set has no part for; DataError for unreadable input, for data of another model
/// than the runner's, and for text of which next to nothing is quantised.
[[nodiscard]] VerifyReport verify_set(const std::filesystem::path& path, const VerifyInputs& inputs,
                                      const VerifyOptions& options, Backend& backend, Status& status);

/// The mean KL of predictions that plans stay within where nobody says another.
inline constexpr double kStockKld = 0.01;

/// Returns the methods (peers/baselines.hpp) that an engine ships.
[[nodiscard]] std::vector<std::string> stock_caches();
/// Throws UsageError for the first name that is not of a stock cache.
void require_stock_caches(const std::vector<std::string>& names);

/// Adds a plan for each of these to the report, which a model and texts are there for.
void plan_stock_caches(VerifyReport& report, const std::vector<std::string>& names, const VerifyInputs& inputs,
                       const VerifyOptions& options, Backend& backend, Status& status);

}  // namespace oscar
