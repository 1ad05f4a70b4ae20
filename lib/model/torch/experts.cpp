// SPDX-License-Identifier: MIT
#include "model/torch/experts.hpp"

#include <ATen/TensorOperators.h>

namespace oscar {

std::unique_ptr<RoutedRows> route_rows(const Weights& layer, const at::Tensor& hidden, const RowBatches& by_rows) {
  const ExpertsSpec& e = layer.block().mlp.experts;
  const at::Tensor normed = layer.norm(hidden, layer.block().mlp_norm);
  auto rows = std::make_unique<RoutedRows>();
  rows->normed = e.input_norm.empty() ? normed : layer.norm(hidden, e.input_norm);
  rows->slots = sort_by_expert(choose_experts(layer, hidden, normed), e.count);
  rows->sum = by_rows(normed, [&](const at::Tensor& x) { return shared_experts(layer, x); }).to(at::kFloat);
  if (e.routed_norm.empty()) return rows;
  rows->shared = layer.norm(rows->sum, e.shared_norm);
  rows->sum.zero_();
  return rows;
}

void add_to_sum(const Weights& layer, int expert, const Weights& weights, const RowBatches& by_rows, RoutedRows& rows) {
  const auto [tokens, shares] = rows.slots.of(expert);
  if (tokens.size(0) == 0) return;
  const at::Tensor y = by_rows(rows.normed.index_select(0, tokens),
                               [&](const at::Tensor& x) { return routed_expert(layer, weights, x); });
  rows.sum.index_add_(0, tokens, y.to(at::kFloat) * shares.unsqueeze(1));
}

at::Tensor whole_sum(const Weights& layer, const RoutedRows& rows) {
  const ExpertsSpec& e = layer.block().mlp.experts;
  const at::Tensor sum = e.routed_norm.empty() ? rows.sum : rows.shared + layer.norm(rows.sum, e.routed_norm);
  return scaled_residual(layer, layer.norm(sum, layer.block().mlp_out_norm));
}

}  // namespace oscar
