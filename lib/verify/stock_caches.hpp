// SPDX-License-Identifier: MIT
// Plans for the caches that engines ship: what each does to the model with every token quantised, which layers and
// sides it hurts, and the least that has to stay in bfloat16, as options that the engine has: whole layers in vLLM, the
// keys or the values of all layers in llama.cpp. What goes first into bfloat16 is what makes the largest errors of
// attention outputs by itself; how much of it has to, the model says: each mixture that a plan names was measured.
#pragma once

#include <string>
#include <vector>

#include "verify/verify.hpp"

namespace oscar {

/// The mean KL of predictions that plans stay within where nobody says another.
inline constexpr double kStockKld = 0.01;

/// Returns the methods (peers/baselines.hpp) that an engine ships.
[[nodiscard]] std::vector<std::string> stock_caches();

/// Adds a plan for each of these to the report; "all" names all of them. Throws UsageError for a name that is not of a
/// stock cache, or without a model and texts.
void plan_stock_caches(VerifyReport& report, std::vector<std::string> names, const VerifyInputs& inputs,
                       const VerifyOptions& options, Backend& backend, Status& status);

}  // namespace oscar
