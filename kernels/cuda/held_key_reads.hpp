// SPDX-License-Identifier: MIT
// HeldKeyReads (kernels/key_gradient.hpp) whose rows lie on the GPU. The sums are those of kernels/cpu/key_gradient.cpp
// in another order.
#pragma once

#include <memory>
#include <span>

#include "kernels/cuda/lanes.hpp"
#include "kernels/key_gradient.hpp"

namespace oscar::cuda {

[[nodiscard]] std::unique_ptr<HeldKeyReads> hold(Lanes& lanes, std::span<const KeyReads* const> reads,
                                                 const RowCodec& codec, Windows windows);

}  // namespace oscar::cuda
