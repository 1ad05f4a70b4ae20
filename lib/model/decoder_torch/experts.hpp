// SPDX-License-Identifier: MIT
// Rows of several sequences on their way through the experts of a layer.
#pragma once

#include <memory>

#include "model/decoder_torch/row_batches.hpp"
#include "model/decoder_torch/rows.hpp"

namespace oscar {

/// normed (T, hidden_size). The sum starts with what shared experts give.
[[nodiscard]] std::unique_ptr<RoutedRows> route_rows(const Weights& layer, const at::Tensor& normed,
                                                     const RowBatches& by_rows);
void add_to_sum(const Weights& layer, int expert, const Weights& weights, const RowBatches& by_rows, RoutedRows& rows);

}  // namespace oscar
