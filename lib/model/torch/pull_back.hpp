// SPDX-License-Identifier: MIT
// The way of a gradient back through one layer, by libtorch's automatic differentiation, and what of it keys and values
// get through reads of the history.
#pragma once

#include <memory>
#include <span>

#include "kernels/types.hpp"
#include "model/torch/row_batches.hpp"
#include "model/torch/rows.hpp"

namespace oscar {

/// Gradients by k (T, Hkv, d) and v (T, Hkv, d_v), in fp32, as far as queries read them in the history: not among the
/// first `sink` tokens, nor the last `recent` that a query sees.
struct HistoryGradients {
  at::Tensor key, value;
};
/// outputs: the gradient by the attention's outputs, (T, Hq, d_v).
[[nodiscard]] HistoryGradients history_gradients(const Weights& layer, const Projected& qkv, const at::Tensor& outputs,
                                                 Windows windows);

/// Returns hidden states behind the layer, as Decoder::behind does.
[[nodiscard]] std::unique_ptr<HiddenRows> behind_layer(const WeightRoute& route, const Weights& layer,
                                                       Decoder::Experts experts, const RowBatches& by_rows,
                                                       const HiddenRows& before);
/// Pulls gradients back, as Decoder::pull_back does. experts: of this layer, by number. Gradients are undefined if the
/// layer does not attend.
[[nodiscard]] HistoryGradients pull_back(const WeightRoute& route, const Weights& layer, Decoder::Experts experts,
                                         const RowBatches& by_rows, const HiddenRows& before, HiddenRows& gradient,
                                         Windows windows);

/// The gradient, by hidden states behind the last layer, of the sum of log-likelihoods of tokens that are drawn from
/// what the model predicts. draws: for each row a number in [0, 1).
[[nodiscard]] at::Tensor likelihood_gradient(const Weights& head, const at::Tensor& hidden,
                                             std::span<const float> draws);

}  // namespace oscar
