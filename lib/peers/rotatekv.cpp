// SPDX-License-Identifier: MIT
// RotateKV (arXiv 2501.16383): keys before RoPE times a Hadamard over four heads, channels sorted by their signed sums,
// groups of 128 sorted channels; values times a Hadamard per head, one group of 128 channels. Whole zero points.
// Its order of channels comes from calibration text: here from the history itself, which favours it. Its protected
// tokens come from hidden states: here the first 20.
#include "peers/affine.hpp"
#include "peers/families.hpp"
#include "peers/rope.hpp"

namespace oscar::methods {
namespace {

constexpr int kHeadsPerRotation = 4, kRotateKvGroup = 128;

}  // namespace

Family rotatekv_methods() {
  const Affine affine{.zero = ZeroPoint::kInteger};
  const auto keys = [=](const History& history) {
    const Matrix m = by_token(history);
    const auto heads_together = static_cast<std::size_t>(kHeadsPerRotation) * static_cast<std::size_t>(history.dim);
    hadamard(m, heads_together);
    const std::vector<std::size_t> order = sorted_order(column_sums(m));
    take_columns(m, order);
    along_rows(m, kRotateKvGroup, affine);
    put_columns(m, order);
    hadamard(m, heads_together);
  };
  const auto key_bits = [](const KvShape& shape) {
    return StoredBits{2, 2 * groups_per_element(shape.head_dim * shape.num_kv_heads, kRotateKvGroup)};
  };
  return {{"rotatekv",
           "RotateKV at 2 bits; channels ordered by the history itself, the first 20 tokens protected",
           {20, 0},
           before_rope({keys, key_bits}),
           rotated(affine_by_token(affine, kRotateKvGroup)),
           true}};
}

}  // namespace oscar::methods
