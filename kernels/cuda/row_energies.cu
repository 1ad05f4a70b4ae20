// SPDX-License-Identifier: MIT
// energies[t, h] = x[t, h] forms[h] x[t, h]^T: one matrix product a head, then one dot product a row.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

constexpr int kWarp = 32;

/// One warp a row; a and b (heads, tokens, dim) -> energies (tokens, heads).
__global__ void dot_rows(const double* a, const double* b, std::int64_t heads, std::int64_t tokens, int dim,
                         double* energies) {
  const std::int64_t row = task_index() / kWarp;
  if (row >= heads * tokens) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double sum = 0;
  for (int i = lane; i < dim; i += kWarp) sum += a[row * dim + i] * b[row * dim + i];
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffU, sum, step);
  if (lane == 0) energies[row % tokens * heads + row / tokens] = sum;
}

}  // namespace

void row_energies(const Context& context, HeadsView x, const MatrixStack& forms, std::span<double> energies) {
  OSCAR_CHECK(x.head_dim == forms.dim && x.num_heads == forms.count);
  OSCAR_CHECK(energies.size() == static_cast<std::size_t>(x.num_tokens) * x.num_heads);
  const DeviceBuffer<double> device_forms{context, std::span(forms.data)};
  for_each_chunk(x, [&](std::int64_t begin, HeadsView chunk) {
    const std::size_t count = static_cast<std::size_t>(chunk.num_tokens) * x.num_heads;
    const DeviceBuffer<double> rows = upload_rows<double>(context, chunk, {0, x.num_heads, 1});
    DeviceBuffer<double> products(context, rows.size());
    DeviceBuffer<double> sums(context, count);
    gemm(context, {.m = chunk.num_tokens, .n = x.head_dim, .k = x.head_dim, .batch = x.num_heads}, rows.data(),
         device_forms.data(), products.data());
    dot_rows<<<blocks_for(count * kWarp), kThreads, 0, context.stream()>>>(rows.data(), products.data(), x.num_heads,
                                                                           chunk.num_tokens, x.head_dim, sums.data());
    OSCAR_CUDA_LAUNCHED("dot_rows");
    sums.download(context, energies.subspan(static_cast<std::size_t>(begin) * x.num_heads, count));
  });
}

}  // namespace oscar::cuda
