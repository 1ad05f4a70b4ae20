// SPDX-License-Identifier: MIT
// Second moments, chunk by chunk: rows go to fp64 and one matrix product a head adds them to its sum.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/launch.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

/// rows (groups, tokens, width) *= sqrt(max(weights (tokens, groups), 0)).
__global__ void scale_rows(const double* weights, std::int64_t groups, std::int64_t tokens, std::int64_t width,
                           double* rows) {
  const std::int64_t i = task_index();
  if (i >= groups * tokens * width) return;
  const std::int64_t token = i / width % tokens;
  const std::int64_t group = i / (width * tokens);
  rows[i] *= sqrt(fmax(weights[token * groups + group], 0.0));
}

void weigh(const Context& context, std::span<const double> weights, std::int64_t groups, std::int64_t tokens,
           DeviceBuffer<double>& rows) {
  const DeviceBuffer<double> device_weights(context, weights);
  scale_rows<<<blocks_for(rows.size()), kThreads, 0, context.stream()>>>(
      device_weights.data(), groups, tokens, static_cast<std::int64_t>(rows.size()) / (groups * tokens), rows.data());
  OSCAR_CUDA_LAUNCHED("scale_rows");
}

}  // namespace

void accumulate_grams(const Context& context, HeadsView x, std::span<const double> weights, MatrixStack& grams) {
  OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads % grams.count == 0);
  OSCAR_CHECK(weights.empty() || weights.size() == static_cast<std::size_t>(x.num_tokens) * grams.count);
  const int g = x.num_heads / grams.count;
  DeviceBuffer<double> sums(context, grams.data.size());
  sums.fill_with_zeros(context);
  for_each_chunk(x, [&](std::int64_t begin, HeadsView chunk) {
    DeviceBuffer<double> rows = upload_rows<double>(context, chunk, {0, grams.count, g});
    if (!weights.empty()) {
      const auto count = static_cast<std::size_t>(grams.count);
      weigh(
          context,
          weights.subspan(static_cast<std::size_t>(begin) * count, static_cast<std::size_t>(chunk.num_tokens) * count),
          grams.count, chunk.num_tokens, rows);
    }
    add_grams(context, rows.data(), grams.count, chunk.num_tokens * g, grams.dim, sums.data());
  });
  add_sums(context, sums, grams);
}

}  // namespace oscar::cuda
