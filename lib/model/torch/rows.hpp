// SPDX-License-Identifier: MIT
// What a sequence has while it passes a layer, as tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>

#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "base/check.hpp"
#include "model/torch/layer_math.hpp"

namespace oscar {

/// Hidden states, on the device, or on the host while nobody computes with them.
struct HiddenRows : Rows {
  at::Tensor x;  // (T, hidden_size)
  std::int64_t first_position = 0;
  at::Tensor before;              // x before the mixer, where the MLP of the same layer reads that
  std::map<int, Projected> kept;  // by layer: k and v of those whose keys and values later layers read
  // What inputs of layers are made of, where there are some: the tokens, and what x was before the first layer.
  std::vector<std::int32_t> tokens;
  at::Tensor embedding;
};

[[nodiscard]] inline const HiddenRows& state_of(const Rows& rows) { return static_cast<const HiddenRows&>(rows); }
[[nodiscard]] inline HiddenRows& state_of(Rows& rows) { return static_cast<HiddenRows&>(rows); }

[[nodiscard]] inline at::ScalarType scalar_type(DType dtype) {
  OSCAR_CHECK(is_activation_dtype(dtype));
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

/// Returns a copy in host memory of hidden states, which are float32 or bfloat16.
[[nodiscard]] inline Tensor host_copy(const at::Tensor& hidden) {
  const at::Tensor x = hidden.cpu().contiguous();
  Tensor copy(x.scalar_type() == at::kFloat ? DType::kF32 : DType::kBF16, {x.size(0), x.size(1)});
  std::memcpy(copy.data.data(), x.data_ptr(), copy.data.size());
  return copy;
}

[[nodiscard]] inline at::Tensor from_host_copy(const TensorRef& copy) {
  const at::Tensor x = at::empty(copy.shape, scalar_type(copy.dtype));
  std::memcpy(x.data_ptr(), copy.data.data(), copy.data.size());
  return x;
}

/// The caller's floats, in libtorch's own memory, whose alignment never changes: the matrix library picks its code by
/// alignment, and results must not depend on where a caller's buffer happens to lie.
[[nodiscard]] inline at::Tensor floats_from(std::span<const float> values, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  OSCAR_CHECK(static_cast<std::size_t>(tensor.numel()) == values.size());
  std::memcpy(tensor.data_ptr(), values.data(), values.size_bytes());
  return tensor;
}

/// Writes a tensor of floats; nothing if it is undefined.
inline void write_floats(const at::Tensor& x, std::span<float> out) {
  if (!x.defined()) return;
  OSCAR_CHECK(static_cast<std::size_t>(x.numel()) == out.size());
  std::memcpy(out.data(), x.cpu().contiguous().data_ptr(), out.size_bytes());
}

struct QkvRows : Rows {
  Projected qkv;
  Projected converted;               // what is being copied
  at::Tensor finite;                 // whether all of q are, all of k, all of v
  at::Tensor finite_on_host;         // the same
  std::optional<c10::Event> copied;  // of a GPU
};

/// Rows of the sequences that experts see together, T tokens in all.
struct RoutedRows : Rows {
  at::Tensor normed;  // (T, hidden_size), what routed experts read
  at::Tensor sum;     // the same shape in fp32
  at::Tensor shared;  // the same, of the experts for all tokens, where `sum` has a norm of its own; else nothing
  ExpertSlots slots;
};

}  // namespace oscar
