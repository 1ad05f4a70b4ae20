// SPDX-License-Identifier: MIT
// All that a sequence takes from layer to layer, as the columns of one matrix: hidden states, then the keys and values
// that later layers read.
#pragma once

#include "model/torch/rows.hpp"

namespace oscar {

[[nodiscard]] std::int64_t state_width(const ModelConfig& config);
/// (T, state_width): zeros where keys and values have not been made yet.
[[nodiscard]] at::Tensor packed_state(const ModelConfig& config, const HiddenRows& hidden);
/// Fills x, and k and v of all layers that share theirs.
void unpack_state(const ModelConfig& config, const at::Tensor& state, HiddenRows& hidden);

}  // namespace oscar
