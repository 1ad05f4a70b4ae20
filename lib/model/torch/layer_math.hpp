// SPDX-License-Identifier: MIT
// The parts of a decoder layer, on libtorch tensors of one sequence: x and results (T, hidden_size) unless said.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/config/config.hpp"
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

/// The scores of queries [begin, end) of a sequence with the keys [first, end) that one of them sees: what libtorch's
/// attention kernels lack (windows, soft caps) and do not show.
struct ScoreBlock {
  std::int64_t begin, end, first;
  at::Tensor behind;  // (queries, keys), int64: how far the key lies behind the query; negative if it comes after it
  at::Tensor scores;  // (heads, queries, keys), fp32: before the softmax; -inf where the query does not see the key
  at::Tensor slope;   // of scores by q . k / sqrt(d), where scores have a soft cap; else undefined

  /// Rows (heads, T, d) of the queries, and of the keys, in fp32.
  [[nodiscard]] at::Tensor of_queries(const at::Tensor& rows) const {
    return rows.narrow(1, begin, end - begin).to(at::kFloat);
  }
  [[nodiscard]] at::Tensor of_keys(const at::Tensor& rows) const {
    return rows.narrow(1, first, end - first).to(at::kFloat);
  }
  /// The softmax of scores, (heads, queries, keys). sinks: (heads, 1, 1), scores that have no value; undefined: none.
  [[nodiscard]] at::Tensor shares(const at::Tensor& sinks) const;
};

/// How many queries' scores are in memory at a time. q: (heads, T, d).
[[nodiscard]] std::int64_t queries_at_once(const at::Tensor& q);
/// q and k: (heads, T, d).
[[nodiscard]] ScoreBlock score_block(const MixerSpec& mixer, const at::Tensor& q, const at::Tensor& k,
                                     std::int64_t begin, std::int64_t end);

}  // namespace oscar
