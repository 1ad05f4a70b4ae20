// SPDX-License-Identifier: MIT
// Rows in GPU memory of one of the activation types, some heads and some tokens of a larger array.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/context.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// rows_per_head rows of each of `heads` heads, `dim` values each; strides are counted in rows.
struct RowsView {
  const void* values = nullptr;
  DType dtype = DType::kF32;
  int dim = 0;
  std::int64_t heads = 0, rows_per_head = 0;
  std::int64_t head_stride = 0, row_stride = 1;

  [[nodiscard]] __host__ __device__ std::int64_t count() const { return heads * rows_per_head; }
  /// Where a row begins in `values`; rows are numbered head by head.
  [[nodiscard]] __device__ std::int64_t offset(std::int64_t row) const {
    return (row / rows_per_head * head_stride + row % rows_per_head * row_stride) * dim;
  }
  [[nodiscard]] __device__ float value(std::int64_t i) const {
    if (dtype == DType::kF32) return static_cast<const float*>(values)[i];
    if (dtype == DType::kF16) return __half2float(static_cast<const __half*>(values)[i]);
    return __bfloat162float(static_cast<const __nv_bfloat16*>(values)[i]);
  }
};

/// Dense fp32 rows (count, dim).
[[nodiscard]] inline RowsView dense_rows(const float* values, std::int64_t count, int dim) {
  return {values, DType::kF32, dim, 1, count, count};
}

[[nodiscard]] __host__ __device__ inline float nearest_bf16(float value) {
  return __bfloat162float(__float2bfloat16_rn(value));
}

/// Writes the values as fp64; kServing rounds them to bfloat16 first. out: one dense (rows_per_head, dim) matrix per
/// head, head_stride values apart.
void widen(const Context& context, const RowsView& rows, Precision precision, double* out, std::int64_t head_stride);

/// Writes dense rows (heads, rows_per_head, dim) to where `rows` views them, rounded to fp32 and then to its type, fp32
/// or bfloat16. The viewed memory must not be constant.
void narrow(const Context& context, const double* dense, const RowsView& rows);

}  // namespace oscar::cuda
