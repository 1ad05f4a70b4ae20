// SPDX-License-Identifier: MIT
// The way of gradients back through one layer, by libtorch's automatic differentiation but for attention, and what of
// them keys and values get through reads of the history. Several gradients share what does not depend on them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/types.hpp"
#include "model/torch/rows.hpp"

namespace oscar {

/// Gradients by k (T, Hkv, d) and v (T, Hkv, d_v), in fp32.
struct CacheGradients {
  at::Tensor key, value;
};
/// Returns hidden states behind the layer, as Decoder::behind does.
[[nodiscard]] std::unique_ptr<HiddenRows> behind_layer(const WeightRoute& route, const Weights& layer,
                                                       Decoder::Experts experts, const RowBatches& by_rows,
                                                       const HiddenRows& before);
/// Returns what pull_back() needs of hidden states, as Decoder::kept_for_gradients does.
[[nodiscard]] std::unique_ptr<HiddenRows> kept_for_gradients(const HiddenRows& hidden);
/// Pulls gradients back, as Decoder::pull_back does. experts: of this layer, by number. Returns what the history gets
/// of each gradient; nothing if the layer does not attend.
[[nodiscard]] std::vector<CacheGradients> pull_back(const WeightRoute& route, const Weights& layer,
                                                    Decoder::Experts experts, const RowBatches& by_rows,
                                                    const HiddenRows& before, std::span<HiddenRows* const> gradients,
                                                    Windows windows);

/// Returns gradients, by hidden states behind the last layer, of the sum of log-likelihoods of tokens that are drawn
/// from what the model predicts: one for each of `draws`, which have a number in [0, 1) for each row.
[[nodiscard]] std::vector<at::Tensor> likelihood_gradients(const Weights& head, const at::Tensor& hidden,
                                                           std::span<const std::vector<float>> draws);

}  // namespace oscar
