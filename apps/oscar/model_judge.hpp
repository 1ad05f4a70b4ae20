// SPDX-License-Identifier: MIT
// What --recipe auto asks of a model: predictions on the calibration sequences that are held out, and probes made from
// them.
#pragma once

#include <span>
#include <vector>

#include "fit/fit.hpp"
#include "model/run/runner.hpp"
#include "verify/methods.hpp"

namespace oscar {

/// Returns the KL of the model's predictions with each cache. sequences: those that the fit calibrates on, in the same
/// order.
[[nodiscard]] std::vector<double> judge_by_kl(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                                              const FitOptions& options, Backend& backend,
                                              std::span<const KvMethod> methods);
/// Returns a judge of rotation sets. runner and backend must outlive it.
[[nodiscard]] ModelJudge make_model_judge(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                                          const FitOptions& options, Backend& backend);

}  // namespace oscar
