// SPDX-License-Identifier: MIT
// Rotary embeddings of consecutive positions.
#pragma once

#include <ATen/core/Tensor.h>

#include "model/config/block.hpp"

namespace oscar {

class RotaryEmbedding {
 public:
  /// Makes the embedding of positions [first, end): some variants depend on `end`, as if the text had begun at 0.
  RotaryEmbedding(const RopeSpec& spec, std::int64_t first, std::int64_t end, c10::Device device);
  /// x (T, heads, d), d at least spec.dim. In fp32.
  [[nodiscard]] at::Tensor apply(const at::Tensor& x) const;

 private:
  const RopeSpec& spec_;
  at::Tensor cosine_, sine_;  // (T, 1, dim / 2)
};

}  // namespace oscar
