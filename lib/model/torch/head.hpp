// SPDX-License-Identifier: MIT
// The final norm and the output head of a model, whose matrix may be its largest.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <span>

#include "model/torch/weights.hpp"

namespace oscar {

/// The final norm as "norm" and the head's matrix (vocab_size, hidden_size) as "head", in memory while somebody holds
/// them. May be taken concurrently.
class SharedHead {
 public:
  [[nodiscard]] std::shared_ptr<const Weights> take(const WeightRoute& route);

 private:
  std::mutex mutex_;
  std::weak_ptr<const Weights> weights_;
};

/// Writes logits (n, vocab_size), scaled and soft-capped as the model says, of rows [first, first + n) of hidden
/// (T, hidden_size).
void write_logits(const Weights& head, const at::Tensor& hidden, std::int64_t first, std::span<float> logits);

/// Returns the logits of all rows of hidden, (T, vocab_size) in fp32, as a tensor that gradients go through.
[[nodiscard]] at::Tensor logits_of(const Weights& head, const at::Tensor& hidden);
/// Returns the logit of one token for each row, (T), in the same way. tokens: (T), int64.
[[nodiscard]] at::Tensor logits_of(const Weights& head, const at::Tensor& hidden, const at::Tensor& tokens);

}  // namespace oscar
