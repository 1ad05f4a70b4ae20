// SPDX-License-Identifier: MIT
// What tokens are before the first layer, and what they add in each (BlockSpec::input_dim). Of a table only the tokens'
// rows are read, or the columns of them that a layer needs.
#pragma once

#include <span>

#include "model/torch/rows.hpp"

namespace oscar {

/// (T, hidden_size), on the device.
[[nodiscard]] at::Tensor embedded(const WeightRoute& route, std::span<const std::int32_t> tokens);
/// What a layer leaves of x, to which its MLP or experts have been added: with its input, by its scalar.
[[nodiscard]] at::Tensor left_behind(const WeightRoute& route, const Weights& layer, const at::Tensor& x,
                                     const HiddenRows& hidden);

}  // namespace oscar
