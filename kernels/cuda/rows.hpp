// SPDX-License-Identifier: MIT
// Rows on the GPU: as they are stored, as views, and converted.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/context.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

// Rows of heads as the GPU computes on them: stored types become T, and heads become the outer index, so that each
// group of heads is one dense matrix. T: float, double.

/// rows (groups, padded_tokens, width) from stored, in GPU memory, where width = num_heads / groups * head_dim; zeros
/// after the last token. kServing rounds to bfloat16.
template <class T>
void convert_rows(const Context& context, const HeadsView& stored, int groups, std::int64_t padded_tokens, T* rows,
                  Precision precision = Precision::kExact);

/// Rounds in place to the nearest bfloat16, by way of fp32.
void round_to_bf16(const Context& context, DeviceBuffer<double>& values);

/// rows (heads, rows_per_head, dim) -= mean (heads, dim) in fp32; kServing rounds to bfloat16.
void subtract_mean(const Context& context, DeviceBuffer<double>& rows, const double* mean, std::int64_t rows_per_head,
                   int dim, Precision precision);

/// Whether the current GPU can run the kernels of this build.
[[nodiscard]] bool has_code_for_this_gpu();

// Rows in GPU memory of one of the activation types, some heads and some tokens of a larger array.

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
