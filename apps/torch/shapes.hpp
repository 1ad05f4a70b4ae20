// SPDX-License-Identifier: MIT
// What operators without data say of their outputs.
#pragma once

#include <optional>

#include "stable_torch.hpp"

namespace oscar::operators {

/// Float32 of the shape of x; sizes that torch.compile has no numbers for stay symbols, since torch alone reads them.
[[nodiscard]] inline Tensor empty_float_like(const Tensor& x) {
  StableIValue stack[] = {torch::stable::detail::from(x),
                          torch::stable::detail::from(std::optional(ScalarType::Float)),
                          torch::stable::detail::from(std::nullopt),
                          torch::stable::detail::from(std::nullopt),
                          torch::stable::detail::from(std::nullopt),
                          torch::stable::detail::from(std::optional(torch::headeronly::MemoryFormat::Contiguous))};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::empty_like", "", stack, TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace oscar::operators
