// SPDX-License-Identifier: MIT
// Rows as they are stored become dense arrays of one type, and views of rows become such arrays and are filled from
// them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

namespace {

/// n neighbours, moved as one word.
template <class T, int n>
struct alignas(sizeof(T) * n) Pack {
  T values[n];
};

template <int n>
__device__ void load_values(const std::byte* stored, DType dtype, std::int64_t first, float (&values)[n]) {
  if (dtype == DType::kF32) {
    const auto pack = *reinterpret_cast<const Pack<float, n>*>(stored + first * 4);
    for (int i = 0; i < n; ++i) values[i] = pack.values[i];
    return;
  }
  const auto pack = *reinterpret_cast<const Pack<std::uint16_t, n>*>(stored + first * 2);
  for (int i = 0; i < n; ++i) {
    values[i] = dtype == DType::kF16 ? __half2float(__ushort_as_half(pack.values[i]))
                                     : __uint_as_float(unsigned{pack.values[i]} << 16);
  }
}

/// One row of blocks a token, n values a thread; width is a multiple of n.
template <class T, int n>
__global__ void convert_token(const std::byte* stored, DType dtype, std::int64_t tokens, int groups, int width,
                              bool round, T* rows) {
  const std::int64_t token = blockIdx.x;
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * n;
  if (column >= groups * width) return;
  float values[n] = {};
  if (token < tokens) load_values(stored, dtype, token * groups * width + column, values);
  const std::int64_t row = std::int64_t{column / width} * gridDim.x + token;
  Pack<T, n> out;
  for (int i = 0; i < n; ++i) out.values[i] = round ? nearest_bf16(values[i]) : values[i];
  *reinterpret_cast<Pack<T, n>*>(rows + row * width + column % width) = out;
}

__global__ void round_values(double* values, std::int64_t count) {
  const std::int64_t i = task_index();
  if (i < count) values[i] = nearest_bf16(static_cast<float>(values[i]));
}

__global__ void subtract_values(double* rows, std::int64_t count, const double* mean, std::int64_t values_per_head,
                                int dim, bool round) {
  const std::int64_t i = task_index();
  if (i >= count) return;
  const double shift = mean[i / values_per_head * dim + i % dim];
  const float centred = static_cast<float>(rows[i]) - static_cast<float>(shift);
  rows[i] = round ? nearest_bf16(centred) : centred;
}

}  // namespace

template <class T>
void convert_rows(const Context& context, const HeadsView& stored, int groups, std::int64_t padded_tokens, T* rows,
                  Precision precision) {
  OSCAR_CHECK(is_activation_dtype(stored.dtype) && stored.num_heads % groups == 0 &&
              padded_tokens >= stored.num_tokens);
  if (padded_tokens == 0) return;
  const int width = stored.num_heads / groups * stored.head_dim;
  const auto launch = [&]<int n>(std::integral_constant<int, n>) {
    const dim3 grid(static_cast<unsigned>(padded_tokens), blocks_for(static_cast<std::size_t>(groups * width / n)));
    convert_token<T, n><<<grid, kThreads, 0, context.stream()>>>(stored.data, stored.dtype, stored.num_tokens, groups,
                                                                 width, precision == Precision::kServing, rows);
    OSCAR_CUDA_LAUNCHED("convert_token");
  };
  width % 4 == 0 ? launch(std::integral_constant<int, 4>()) : launch(std::integral_constant<int, 1>());
}
template void convert_rows(const Context&, const HeadsView&, int, std::int64_t, float*, Precision);
template void convert_rows(const Context&, const HeadsView&, int, std::int64_t, double*, Precision);

void round_to_bf16(const Context& context, DeviceBuffer<double>& values) {
  if (values.size() == 0) return;
  round_values<<<blocks_for(values.size()), kThreads, 0, context.stream()>>>(values.data(),
                                                                             static_cast<std::int64_t>(values.size()));
  OSCAR_CUDA_LAUNCHED("round_values");
}

void subtract_mean(const Context& context, DeviceBuffer<double>& rows, const double* mean, std::int64_t rows_per_head,
                   int dim, Precision precision) {
  if (rows.size() == 0) return;
  subtract_values<<<blocks_for(rows.size()), kThreads, 0, context.stream()>>>(
      rows.data(), static_cast<std::int64_t>(rows.size()), mean, rows_per_head * dim, dim,
      precision == Precision::kServing);
  OSCAR_CUDA_LAUNCHED("subtract_values");
}

bool has_code_for_this_gpu() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, round_values) == cudaSuccess;
  (void)cudaGetLastError();
  return found;
}

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
