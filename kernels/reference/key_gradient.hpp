// SPDX-License-Identifier: MIT
// The softmax KL that quantised keys cost, and its derivative by a rotation of keys and queries: the formulas of
// kernels/key_gradient.hpp in fp64. Turned keys are rounded to float32 before they are encoded.
#pragma once

#include "kernels/key_gradient.hpp"

namespace oscar::reference {

/// Returns the sums over the queries of `reads`. rotation: U, (d, d).
[[nodiscard]] KlGradient key_gradient(const KeyReads& reads, std::span<const float> rotation, const RowCodec& codec,
                                      Windows windows);

}  // namespace oscar::reference
