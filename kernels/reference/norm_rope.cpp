// SPDX-License-Identifier: MIT
#include "kernels/reference/norm_rope.hpp"

#include <cmath>
#include <cstddef>

#include "base/check.hpp"
#include "kernels/reference/strand_sum.hpp"
#include "tensor/dtype.hpp"

namespace oscar::reference {

void rms_norm_row(std::span<float> row, std::span<const float> weight, NormWeight type, float epsilon) {
  OSCAR_CHECK(row.size() == weight.size() && !row.empty() && epsilon > 0);
  const float sum = strand_sum<float>(row.size(), [&](std::size_t i) { return row[i] * row[i]; });
  const float mean = sum / static_cast<float>(row.size()) + epsilon;
  const auto scale = static_cast<float>(1 / std::sqrt(double{mean}));
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float normed = row[i] * scale;
    row[i] = round_to_bf16((type == NormWeight::kBfloat16 ? round_to_bf16(normed) : normed) * weight[i]);
  }
}

void rope_row(std::span<float> row, std::span<const float> cos_sin, bool interleaved) {
  const std::size_t pairs = cos_sin.size() / 2;
  OSCAR_CHECK(cos_sin.size() % 2 == 0 && cos_sin.size() <= row.size());
  for (std::size_t f = 0; f < pairs; ++f) {
    float& a = row[interleaved ? 2 * f : f];
    float& b = row[interleaved ? 2 * f + 1 : f + pairs];
    const float x = a, y = b, cosine = cos_sin[f], sine = cos_sin[f + pairs];
    a = round_to_bf16(x * cosine - y * sine);
    b = round_to_bf16(y * cosine + x * sine);
  }
}

}  // namespace oscar::reference
