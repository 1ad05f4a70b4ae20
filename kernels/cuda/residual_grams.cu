// SPDX-License-Identifier: MIT
// Second moments of what the codec loses: y = x rotation in fp64, e = decode(encode(fp32(y))) - y, grams += e^T e.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

__global__ void round_to_f32(const double* values, std::int64_t count, float* rounded) {
  const std::int64_t i = task_index();
  if (i < count) rounded[i] = static_cast<float>(values[i]);
}

/// values = decoded - values.
__global__ void subtract_from(const float* decoded, std::int64_t count, double* values) {
  const std::int64_t i = task_index();
  if (i < count) values[i] = static_cast<double>(decoded[i]) - values[i];
}

/// rotated -> residuals, in place.
void replace_by_residuals(const Context& context, DeviceBuffer<double>& rotated, int dim, const RowCodec& codec) {
  const auto count = static_cast<std::int64_t>(rotated.size());
  DeviceBuffer<float> rows(context, rotated.size());
  DeviceBuffer<float> decoded(context, rotated.size());
  round_to_f32<<<blocks_for(rotated.size()), kThreads, 0, context.stream()>>>(rotated.data(), count, rows.data());
  OSCAR_CUDA_LAUNCHED("round_to_f32");
  quantize_rows(context, rows, dim, codec, Precision::kExact, decoded, {});
  subtract_from<<<blocks_for(rotated.size()), kThreads, 0, context.stream()>>>(decoded.data(), count, rotated.data());
  OSCAR_CUDA_LAUNCHED("subtract_from");
}

}  // namespace

void accumulate_residual_grams(const Context& context, HeadsView x, const MatrixStack& rotation, const RowCodec& codec,
                               MatrixStack& grams) {
  OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads == grams.count && rotation.dim == grams.dim);
  OSCAR_CHECK(rotation.count == 1 || rotation.count == grams.count);
  const DeviceBuffer<double> matrices{context, std::span(rotation.data)};
  DeviceBuffer<double> sums(context, grams.data.size());
  sums.fill_with_zeros(context);
  for_each_chunk(x, [&](std::int64_t, HeadsView chunk) {
    const DeviceBuffer<double> rows = upload_rows<double>(context, chunk, {0, x.num_heads, 1});
    DeviceBuffer<double> rotated(context, rows.size());
    gemm(context,
         {.m = chunk.num_tokens, .n = grams.dim, .k = grams.dim, .batch = grams.count, .shared_b = rotation.count == 1},
         rows.data(), matrices.data(), rotated.data());
    replace_by_residuals(context, rotated, grams.dim, codec);
    add_grams(context, rotated.data(), grams.count, chunk.num_tokens, grams.dim, sums.data());
  });
  add_sums(context, sums, grams);
}

}  // namespace oscar::cuda
