// SPDX-License-Identifier: MIT
// Gradients through the attention of one sequence in one layer, and what of them keys and values get through reads of
// the history.
#pragma once

#include <span>
#include <vector>

#include "kernels/types.hpp"
#include "model/torch/layer_math.hpp"

namespace oscar {

/// Gradients by k (T, Hkv, d) and v (T, Hkv, d_v), in fp32.
struct CacheGradients {
  at::Tensor key, value;
};
/// Gradients by what attention reads. Reads of the history are those of keys and values that stand neither among the
/// first `sink` tokens nor among the last `recent` that a query sees.
struct AttentionGradients {
  at::Tensor query;               // (T, Hq, d), in fp32
  CacheGradients cache, history;  // through all reads, and through those of the history
};

/// Returns the gradients for each of several gradients by the attention's outputs. outputs: what attention gave,
/// (T, Hq, d_v); by_outputs: of the same shape. All share the scores.
[[nodiscard]] std::vector<AttentionGradients> attention_gradients(const Weights& layer, const Projected& qkv,
                                                                  const at::Tensor& outputs,
                                                                  std::span<const at::Tensor> by_outputs,
                                                                  Windows windows);

}  // namespace oscar
