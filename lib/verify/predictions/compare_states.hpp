// SPDX-License-Identifier: MIT
// Compares what runs of one model over the same texts predict, block of positions by block: the logits of whole texts
// would take gigabytes.
#pragma once

#include <span>
#include <vector>

#include "model/run/runner.hpp"
#include "verify/predictions/model_sums.hpp"

namespace oscar::verify {

/// Returns the figures of each run in `runs` beside those of exact attention, [run][text]. Texts have two tokens or
/// more.
[[nodiscard]] std::vector<std::vector<TextFigures>> compare_states(const ModelRunner& runner,
                                                                   std::span<const TokenSequence> texts,
                                                                   const FinalStates& exact,
                                                                   std::span<const FinalStates* const> runs);

}  // namespace oscar::verify
