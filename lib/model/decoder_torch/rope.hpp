// SPDX-License-Identifier: MIT
// Rotary embeddings of positions 0 … T-1.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/block.hpp"

namespace oscar {

class RotaryEmbedding {
 public:
  /// For sequences of `num_tokens`: some variants depend on the length.
  RotaryEmbedding(const RopeSpec& spec, std::int64_t num_tokens, c10::Device device);
  /// x (T, heads, d), d at least spec.dim. In fp32.
  [[nodiscard]] at::Tensor apply(const at::Tensor& x) const;

 private:
  const RopeSpec& spec_;
  at::Tensor cosine_, sine_;  // (T, 1, dim / 2)
};

}  // namespace oscar
