// SPDX-License-Identifier: MIT
// What --recipe auto asks of a model: predictions on the calibration sequences that are held out, and probes made from
// them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "fit/fit.hpp"
#include "model/run/runner.hpp"
#include "verify/methods.hpp"

namespace oscar {

/// Judges caches of any kind.
using MethodJudge = std::function<std::vector<ModelScore>(std::span<const KvMethod>)>;

/// sequences: those that the fit calibrates on, in the same order. runner and backend must outlive the judge.
[[nodiscard]] MethodJudge make_method_judge(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                                            const FitOptions& options, Backend& backend);
/// Returns a judge of rotation sets.
[[nodiscard]] ModelJudge make_model_judge(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                                          const FitOptions& options, Backend& backend);

}  // namespace oscar
