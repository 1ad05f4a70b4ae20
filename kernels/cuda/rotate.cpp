// SPDX-License-Identifier: MIT
// rows = x M per head in fp64, rounded to fp32. Serving rounds x, M and the product to bfloat16.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/rows_view.hpp"

namespace oscar::cuda {
void rotate(const Context& context, HeadsView x, const MatrixStack& rotated_from_native, Precision precision,
            std::span<float> rows) {
  OSCAR_CHECK(rotated_from_native.dim == x.head_dim && rotated_from_native.count > 0);
  OSCAR_CHECK(x.num_heads % rotated_from_native.count == 0);
  OSCAR_CHECK(rows.size() == static_cast<std::size_t>(x.num_tokens) * x.num_heads * x.head_dim);
  const int groups = rotated_from_native.count;
  const int g = x.num_heads / groups;
  DeviceBuffer<double> matrices{context, std::span<const double>(rotated_from_native.data)};
  if (precision == Precision::kServing) round_to_bf16(context, matrices);
  for_each_chunk(x, [&](std::int64_t begin, HeadsView chunk) {
    const DeviceBuffer<double> native = upload_rows<double>(context, chunk, {0, groups, g}, precision);
    DeviceBuffer<double> rotated(context, native.size());
    gemm(context, {.m = chunk.num_tokens * g, .n = x.head_dim, .k = x.head_dim, .batch = groups}, native.data(),
         matrices.data(), rotated.data());
    DeviceBuffer<float> chunk_rows(context, native.size());
    narrow(context, rotated.data(),
           {.values = chunk_rows.data(),
            .dim = g * x.head_dim,
            .heads = groups,
            .rows_per_head = chunk.num_tokens,
            .head_stride = 1,
            .row_stride = groups});
    if (precision == Precision::kServing) round_to_bf16(context, chunk_rows);
    chunk_rows.download(context,
                        rows.subspan(static_cast<std::size_t>(begin) * x.num_heads * x.head_dim, native.size()));
  });
}

}  // namespace oscar::cuda
