// SPDX-License-Identifier: MIT
// The judge: structure checks, attention metrics, model metrics, and a verdict with reasons. Shares no code with fit,
// spectral or transform. A failed structure check or a figure above its limit (given, or the default for the set's
// bits) rejects a set; figures within limits accept it, and without any it is not measured; everything else that a
// reader should know is a warning, for example being worse than a plain Hadamard rotation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "model/run/runner.hpp"
#include "moments/statistics.hpp"
#include "measure/predictions/model_metrics.hpp"
#include "verify/report/report.hpp"

namespace oscar {

struct VerifyOptions {
  /// Names of methods (peers/baselines.hpp), or "all", or "none".
  std::vector<std::string> compare{"bf16", "naive", "hadamard_clip", "int4", "fp8"};
  /// Windows of the set, and of all methods; those not given come from the set.
  std::optional<int> sink, recent;
  /// Other methods get the windows that their authors use.
  bool own_windows = false;
  Precision precision = Precision::kServing;
  VerifyThresholds thresholds;
  /// Thresholds that are not given are those of the set's number of bits (verdict.hpp), for what was measured.
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

/// Throws UsageError for a threshold without the data that it needs or an unknown method, DataError for unreadable
/// input, for data of another model than the runner's, and for text of which next to nothing is quantised.
[[nodiscard]] VerifyReport verify_rotations(const std::filesystem::path& rotations, const VerifyInputs& inputs,
                                            const VerifyOptions& options, Backend& backend, Status& status);

}  // namespace oscar
