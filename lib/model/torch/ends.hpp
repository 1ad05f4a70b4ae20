// SPDX-License-Identifier: MIT
// The two ends of a model: what tokens are before the first layer, and what they add in each (BlockSpec::input_dim);
// the final norm and the output head, whose matrix may be its largest. Of a table of tokens only their rows are read,
// or the columns of them that a layer needs.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>

#include "model/torch/rows.hpp"

namespace oscar {

/// (T, hidden_size), on the device.
[[nodiscard]] at::Tensor embedded(const WeightRoute& route, std::span<const std::int32_t> tokens);
/// What a layer leaves of x, to which its MLP or experts have been added: with its input, by its scalar.
[[nodiscard]] at::Tensor left_behind(const WeightRoute& route, const Weights& layer, const at::Tensor& x,
                                     const HiddenRows& hidden);

/// Loads the final norm as "norm.weight" and the head's matrix (vocab_size, hidden_size) as "head.weight".
[[nodiscard]] std::unique_ptr<Weights> load_head_weights(const WeightRoute& route);

/// Writes logits (T, vocab_size), scaled and soft-capped as the model says, of hidden (T, hidden_size).
void write_logits(const Weights& head, const at::Tensor& hidden, std::span<float> logits);

/// Compares predictions, as FinalStates::compare() does, of rows (n, hidden_size) of one run with those of others.
void compare_predictions(const Weights& head, const at::Tensor& exact, std::span<const at::Tensor> others,
                         std::span<const std::int32_t> next, std::span<const std::span<PositionFigures>> out);

/// Makes logits of products with the head's matrix: scales and soft-caps them as the model says.
void finish_logits(const Weights& head, at::Tensor& logits);

}  // namespace oscar
