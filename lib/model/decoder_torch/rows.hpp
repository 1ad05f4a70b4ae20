// SPDX-License-Identifier: MIT
// What a sequence has while it passes a layer, as tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

#include "model/decoder_torch/layer_math.hpp"

namespace oscar {

/// (T, hidden_size), on the device, or on the host while nobody computes with it.
struct HiddenRows : Rows {
  at::Tensor x;
};

struct QkvRows : Rows {
  Projected qkv;
  Projected converted;               // what is being copied
  at::Tensor finite;                 // of q, k, v
  std::optional<c10::Event> copied;  // of a GPU
};

struct RoutedRows : Rows {
  at::Tensor sum;  // (T, hidden_size), fp32
  ExpertSlots slots;
};

}  // namespace oscar
