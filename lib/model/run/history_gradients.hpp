// SPDX-License-Identifier: MIT
// A gradient's way from what a model predicts back to the caches of its layers; for runner.cpp.
#pragma once

#include <cstddef>
#include <vector>

#include "base/status.hpp"
#include "model/run/decoder.hpp"
#include "model/run/runner.hpp"

namespace oscar {

/// Returns the numbers in [0, 1) by which a token is drawn at each position, the same on every machine. sample: the
/// number of the sequence; in a later draw, behind those of the draws before.
[[nodiscard]] std::vector<float> draws_for(std::size_t sample, std::size_t tokens);

/// Does what ModelRunner::history_gradients() says, for sequences that were checked.
void take_gradients(const Decoder& decoder, const ModelConfig& config, const HistoryQuestion& question,
                    const HistoryHook& hook, Status& status);

}  // namespace oscar
