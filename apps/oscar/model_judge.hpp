// SPDX-License-Identifier: MIT
// What --recipe auto asks of a model: predictions on the calibration sequences that are held out, and probes made from
// them.
#pragma once

#include <vector>

#include "fit/fit.hpp"
#include "model/runner.hpp"

namespace oscar {

/// sequences: those that the fit calibrates on, in the same order. runner and backend must outlive the judge.
[[nodiscard]] ModelJudge make_model_judge(ModelRunner& runner, const std::vector<TokenSequence>& sequences,
                                          const FitOptions& options, Backend& backend);

}  // namespace oscar
