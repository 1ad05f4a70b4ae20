// SPDX-License-Identifier: MIT
// Rows of several sequences on their way through the experts of a layer.
#pragma once

#include <memory>

#include "model/torch/row_batches.hpp"
#include "model/torch/rows.hpp"

namespace oscar {

/// hidden (T, hidden_size). The sum starts with what shared experts give, or with zeros where that is kept apart.
[[nodiscard]] std::unique_ptr<RoutedRows> route_rows(const Weights& layer, const at::Tensor& hidden,
                                                     const RowBatches& by_rows);
void add_to_sum(const Weights& layer, int expert, const Weights& weights, const RowBatches& by_rows, RoutedRows& rows);
/// What all experts add to hidden states, fp32.
[[nodiscard]] at::Tensor whole_sum(const Weights& layer, const RoutedRows& rows);

}  // namespace oscar
