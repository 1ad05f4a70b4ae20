// SPDX-License-Identifier: MIT
// rows = x M per head, fp64 accumulation. Serving rounds x, M and the product to bfloat16, as a server's GEMM does.
#include <algorithm>
#include <vector>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/cpu/products.hpp"

namespace oscar::cpu {
namespace {

constexpr std::int64_t kTokensPerTask = 128;

void round_all(std::vector<double>& values) {
  for (double& value : values) value = round_to_bf16(static_cast<float>(value));
}

/// Tokens [begin, begin + count) of one head.
void rotate_block(HeadsView x, std::int64_t begin, std::int64_t count, int head, const double* matrix,
                  Precision precision, std::span<float> rows) {
  const std::int64_t dim = x.head_dim;
  std::vector<double> native(static_cast<std::size_t>(count * dim));
  std::vector<double> rotated(native.size());
  x.head_rows(begin, count, head, native.data());
  if (precision == Precision::kServing) round_all(native);
  gemm({.m = count, .n = dim, .k = dim}, native.data(), dim, matrix, dim, rotated.data(), dim);
  for (std::int64_t t = 0; t < count; ++t) {
    float* out = rows.data() + ((begin + t) * x.num_heads + head) * dim;
    for (std::int64_t i = 0; i < dim; ++i) {
      const auto value = static_cast<float>(rotated[static_cast<std::size_t>(t * dim + i)]);
      out[i] = precision == Precision::kServing ? round_to_bf16(value) : value;
    }
  }
}

}  // namespace

void rotate(HeadsView x, const MatrixStack& rotated_from_native, Precision precision, std::span<float> rows) {
  OSCAR_CHECK(rotated_from_native.dim == x.head_dim && rotated_from_native.count > 0);
  OSCAR_CHECK(x.num_heads % rotated_from_native.count == 0);
  OSCAR_CHECK(rows.size() == static_cast<std::size_t>(x.num_tokens) * x.num_heads * x.head_dim);
  std::vector<double> matrices = rotated_from_native.data;
  if (precision == Precision::kServing) round_all(matrices);
  const int heads_per_matrix = x.num_heads / rotated_from_native.count;
  const std::int64_t blocks = (x.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  parallel_for(static_cast<std::size_t>(blocks * x.num_heads), [&](std::size_t task) {
    const int head = static_cast<int>(static_cast<std::int64_t>(task) / blocks);
    const std::int64_t begin = static_cast<std::int64_t>(task) % blocks * kTokensPerTask;
    const double* matrix =
        matrices.data() + static_cast<std::ptrdiff_t>(head / heads_per_matrix) * x.head_dim * x.head_dim;
    rotate_block(x, begin, std::min(kTokensPerTask, x.num_tokens - begin), head, matrix, precision, rows);
  });
}

}  // namespace oscar::cpu
