// SPDX-License-Identifier: MIT
// Between callers' buffers and libtorch. Every call runs on the caller's thread alone. Operands live in libtorch's own
// memory, whose alignment never changes: the matrix library picks its code by alignment, and results must not depend on
// where a caller's buffer happens to lie.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <cstring>
#include <span>

#include "base/check.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

/// What every call needs: no gradients, no helper threads.
struct CallGuard {
  CallGuard() {
    thread_local const bool once = (at::set_num_threads(1), true);
    (void)once;
  }
  c10::InferenceMode inference;
};

/// A copy of the caller's floats.
inline at::Tensor take(std::span<const float> values, at::IntArrayRef shape) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  OSCAR_CHECK(static_cast<std::size_t>(tensor.numel()) == values.size());
  std::memcpy(tensor.data_ptr(), values.data(), values.size_bytes());
  return tensor;
}

/// The same as rows of `width`.
inline at::Tensor take_rows(std::span<const float> values, std::int64_t width) {
  return take(values, {static_cast<std::int64_t>(values.size()) / width, width});
}

inline at::Tensor take(const HeadsView& rows) {
  const std::size_t count = static_cast<std::size_t>(rows.num_tokens) * rows.num_heads * rows.head_dim;
  OSCAR_CHECK(rows.dtype == DType::kF32);
  return take({reinterpret_cast<const float*>(rows.data), count}, {rows.num_tokens, rows.num_heads, rows.head_dim});
}

inline void give(const at::Tensor& tensor, std::span<float> out) {
  OSCAR_CHECK(static_cast<std::size_t>(tensor.numel()) == out.size());
  at::from_blob(out.data(), tensor.sizes(), at::kFloat).copy_(tensor);
}

}  // namespace oscar
