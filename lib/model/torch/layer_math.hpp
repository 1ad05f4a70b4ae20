// SPDX-License-Identifier: MIT
// The parts of a decoder layer, on libtorch tensors of one sequence: x and results (T, hidden_size) unless said.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "model/torch/weights.hpp"

namespace oscar {

/// What a layer projects, as in decoder.hpp: q (T, Hq, d), k (T, Hkv, d), v (T, Hkv, d_v).
struct Projected {
  at::Tensor q, k, v;
};

/// Projects rows; there are no k and v if the layer reads those of another. first_position: of the first row of x.
[[nodiscard]] Projected project_attention(const Weights& layer, const at::Tensor& x, std::int64_t first_position);
/// The scores (heads, 1, 1) of query heads [first, first + heads) that have no value; undefined if there are none.
[[nodiscard]] at::Tensor sinks_of(const Weights& layer, std::int64_t first, std::int64_t heads);
/// (T, Hq, d_v)
[[nodiscard]] at::Tensor exact_attention(const Weights& layer, const Projected& qkv);
/// What attention outputs (T, Hq, d_v) add to x.
[[nodiscard]] at::Tensor attention_output(const Weights& layer, const at::Tensor& attention, const at::Tensor& x);

/// What a gated delta layer adds to x.
[[nodiscard]] at::Tensor gated_delta(const Weights& layer, const at::Tensor& x);

/// What a layer's dense MLP adds, for the hidden states that it reads.
[[nodiscard]] at::Tensor dense_mlp(const Weights& layer, const at::Tensor& x);
/// What a part of the layer adds, by the layer's factor.
[[nodiscard]] at::Tensor scaled_residual(const Weights& layer, const at::Tensor& added);
/// What a layer with an input of its own makes of x behind its MLP. own: what tokens have for it in the table, (T,
/// input_dim). embedding: x before the first layer.
[[nodiscard]] at::Tensor with_layer_input(const Weights& layer, const at::Tensor& x, const at::Tensor& embedding,
                                          const at::Tensor& own);
/// What a layer leaves, by its scalar.
[[nodiscard]] at::Tensor scaled(const Weights& layer, const at::Tensor& x);
/// Which experts (T, top_k), int64, and with which weights, fp32. normed: x by the MLP's norm.
struct Chosen {
  at::Tensor experts, weights;
};
[[nodiscard]] Chosen choose_experts(const Weights& layer, const at::Tensor& x, const at::Tensor& normed);
/// The choices of `Chosen`, sorted by expert.
struct ExpertSlots {
  at::Tensor tokens, weights;        // (T * top_k): int64; fp32
  std::vector<std::int64_t> begins;  // of each expert's slots; one more than there are experts
  /// Experts that are named, ascending.
  [[nodiscard]] std::vector<int> chosen() const;
  /// Tokens of one expert, each once, and its weights for them.
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> of(int expert) const;
};
[[nodiscard]] ExpertSlots sort_by_expert(const Chosen& chosen, int num_experts);
/// What the experts for all tokens give for normed hidden states; zeros if there is none.
[[nodiscard]] at::Tensor shared_experts(const Weights& layer, const at::Tensor& normed);
/// One routed expert on rows of normed hidden states.
[[nodiscard]] at::Tensor routed_expert(const Weights& layer, const Weights& expert, const at::Tensor& normed);

}  // namespace oscar
