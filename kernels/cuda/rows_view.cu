// SPDX-License-Identifier: MIT
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/rows_view.hpp"

namespace oscar::cuda {
namespace {

__global__ void widen_value(RowsView rows, bool round, double* out, std::int64_t head_stride) {
  const std::int64_t index = task_index();
  const std::int64_t row = index / rows.dim;
  if (row >= rows.count()) return;
  const float value = rows.value(rows.offset(row) + index % rows.dim);
  const std::int64_t head = row / rows.rows_per_head;
  out[head * head_stride + index - head * rows.rows_per_head * rows.dim] = round ? nearest_bf16(value) : value;
}

__global__ void narrow_value(const double* dense, RowsView rows, void* values) {
  const std::int64_t index = task_index();
  const std::int64_t row = index / rows.dim;
  if (row >= rows.count()) return;
  const auto value = static_cast<float>(dense[index]);
  const std::int64_t to = rows.offset(row) + index % rows.dim;
  if (rows.dtype == DType::kBF16) {
    static_cast<__nv_bfloat16*>(values)[to] = __float2bfloat16_rn(value);
  } else {
    static_cast<float*>(values)[to] = value;
  }
}

std::size_t size_of(const RowsView& rows) { return static_cast<std::size_t>(rows.count() * rows.dim); }

}  // namespace

void widen(const Context& context, const RowsView& rows, Precision precision, double* out, std::int64_t head_stride) {
  if (size_of(rows) == 0) return;
  widen_value<<<blocks_for(size_of(rows)), kThreads, 0, context.stream()>>>(rows, precision == Precision::kServing, out,
                                                                            head_stride);
  OSCAR_CUDA_LAUNCHED("widen_value");
}

void narrow(const Context& context, const double* dense, const RowsView& rows) {
  if (size_of(rows) == 0) return;
  narrow_value<<<blocks_for(size_of(rows)), kThreads, 0, context.stream()>>>(dense, rows,
                                                                             const_cast<void*>(rows.values));
  OSCAR_CUDA_LAUNCHED("narrow_value");
}

}  // namespace oscar::cuda
