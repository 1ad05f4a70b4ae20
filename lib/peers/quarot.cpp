// SPDX-License-Identifier: MIT
// QuaRot (arXiv 2404.00456) with 2 bits instead of its 4: Hadamard per head on keys after RoPE and on values, one group
// per (token, head) with a whole zero point that is stored like a code. The range of keys contains 0, that of values
// need not. What OSCAR's authors call QuaRot-INT2 is a Hadamard before OSCAR's own codec: "hadamard", "hadamard_h16".
#include "peers/affine.hpp"
#include "peers/families.hpp"

namespace oscar::methods {
namespace {

SideMethod quarot_side(bool include_zero, float clip) {
  const Affine affine{.zero = ZeroPoint::kInteger, .include_zero = include_zero, .shrink = clip};
  return rotated(by_token(affine, 0, [](const KvShape& shape) {
    return StoredBits{2 + 2.0 / shape.head_dim, 1.0 / shape.head_dim};
  }));
}

}  // namespace

Family quarot_methods() {
  return {{"quarot",
           "QuaRot at 2 bits: Hadamard, whole zero points, clip 1",
           {0, 0},
           quarot_side(true, 1),
           quarot_side(false, 1)},
          {"quarot_clip", "QuaRot at 2 bits, clip 0.95", {0, 0}, quarot_side(true, 0.95F), quarot_side(false, 0.95F)}};
}

}  // namespace oscar::methods
