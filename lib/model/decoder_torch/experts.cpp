// SPDX-License-Identifier: MIT
#include "model/decoder_torch/experts.hpp"

#include <ATen/TensorOperators.h>

namespace oscar {

std::unique_ptr<RoutedRows> route_rows(const Weights& layer, const at::Tensor& normed, const RowBatches& by_rows) {
  auto rows = std::make_unique<RoutedRows>();
  rows->normed = normed;
  rows->slots = sort_by_expert(choose_experts(layer, normed), layer.block().mlp.experts.count);
  rows->sum = by_rows(normed, [&](const at::Tensor& x) { return shared_experts(layer, x); }).to(at::kFloat);
  return rows;
}

void add_to_sum(const Weights& layer, int expert, const Weights& weights, const RowBatches& by_rows, RoutedRows& rows) {
  const auto [tokens, shares] = rows.slots.of(expert);
  if (tokens.size(0) == 0) return;
  const at::Tensor y = by_rows(rows.normed.index_select(0, tokens),
                               [&](const at::Tensor& x) { return routed_expert(layer, weights, x); });
  rows.sum.index_add_(0, tokens, y.to(at::kFloat) * shares.unsqueeze(1));
}

}  // namespace oscar
