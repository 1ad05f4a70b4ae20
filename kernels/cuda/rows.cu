// SPDX-License-Identifier: MIT
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/arguments.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

__device__ float stored_value(const std::byte* data, DType dtype, std::int64_t i) {
  if (dtype == DType::kF32) return reinterpret_cast<const float*>(data)[i];
  if (dtype == DType::kF16) return __half2float(reinterpret_cast<const __half*>(data)[i]);
  return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(data)[i]);
}

__device__ float nearest_bf16(float value) { return __bfloat162float(__float2bfloat16_rn(value)); }

/// stored (tokens, groups, width) -> rows (groups, tokens, width).
template <class T>
__global__ void load_rows(const std::byte* stored, DType dtype, std::int64_t tokens, std::int64_t groups,
                          std::int64_t width, bool round, T* rows) {
  const std::int64_t i = task_index();
  if (i >= tokens * groups * width) return;
  const std::int64_t token = i / (groups * width);
  const std::int64_t group = i / width % groups;
  const float value = stored_value(stored, dtype, i);
  rows[(group * tokens + token) * width + i % width] = round ? nearest_bf16(value) : value;
}

template <class T>
__global__ void round_values(T* values, std::int64_t count) {
  const std::int64_t i = task_index();
  if (i < count) values[i] = nearest_bf16(static_cast<float>(values[i]));
}

/// The stored bytes of some heads, token by token.
DeviceBuffer<std::byte> upload_stored(const Context& context, HeadsView x, HeadGroups heads) {
  const std::size_t head_bytes = size_of(x.dtype) * static_cast<std::size_t>(x.head_dim);
  const std::size_t bytes = head_bytes * static_cast<std::size_t>(heads.groups * heads.heads_per_group);
  const auto tokens = static_cast<std::size_t>(x.num_tokens);
  const auto token_bytes = static_cast<std::size_t>(x.bytes_per_token());
  if (bytes == token_bytes) return DeviceBuffer<std::byte>(context, std::span(x.data, tokens * token_bytes));
  std::vector<std::byte> dense(tokens * bytes);
  const std::byte* source = x.data + head_bytes * static_cast<std::size_t>(heads.first);
  for (std::size_t t = 0; t < tokens; ++t) std::memcpy(&dense[t * bytes], source + t * token_bytes, bytes);
  return DeviceBuffer<std::byte>(context, std::span<const std::byte>(dense));
}

}  // namespace

template <class T>
DeviceBuffer<T> upload_rows(const Context& context, HeadsView x, HeadGroups heads, Precision precision) {
  OSCAR_CHECK(is_activation_dtype(x.dtype) && heads.first + heads.groups * heads.heads_per_group <= x.num_heads);
  const std::int64_t width = std::int64_t{heads.heads_per_group} * x.head_dim;
  DeviceBuffer<T> rows(context, static_cast<std::size_t>(x.num_tokens * heads.groups * width));
  if (rows.size() == 0) return rows;
  const DeviceBuffer<std::byte> stored = upload_stored(context, x, heads);
  load_rows<<<blocks_for(rows.size()), kThreads, 0, context.stream()>>>(
      stored.data(), x.dtype, x.num_tokens, heads.groups, width, precision == Precision::kServing, rows.data());
  OSCAR_CUDA_LAUNCHED("load_rows");
  return rows;
}
template DeviceBuffer<float> upload_rows(const Context&, HeadsView, HeadGroups, Precision);
template DeviceBuffer<double> upload_rows(const Context&, HeadsView, HeadGroups, Precision);

template <class T>
void round_to_bf16(const Context& context, DeviceBuffer<T>& values) {
  if (values.size() == 0) return;
  round_values<<<blocks_for(values.size()), kThreads, 0, context.stream()>>>(values.data(),
                                                                             static_cast<std::int64_t>(values.size()));
  OSCAR_CUDA_LAUNCHED("round_values");
}
template void round_to_bf16(const Context&, DeviceBuffer<float>&);
template void round_to_bf16(const Context&, DeviceBuffer<double>&);

void add_sums(const Context& context, const DeviceBuffer<double>& sums, MatrixStack& grams) {
  const std::vector<double> host = sums.to_host(context);
  const std::size_t size = static_cast<std::size_t>(grams.dim) * grams.dim;
  for (int i = 0; i < grams.count; ++i) {
    add_symmetric(std::span(host).subspan(static_cast<std::size_t>(i) * size, size), grams[i], grams.dim);
  }
}

bool has_code_for_this_gpu() {
  cudaFuncAttributes attributes{};
  const bool found = cudaFuncGetAttributes(&attributes, round_values<float>) == cudaSuccess;
  (void)cudaGetLastError();
  return found;
}

}  // namespace oscar::cuda
