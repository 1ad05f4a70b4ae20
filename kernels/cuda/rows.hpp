// SPDX-License-Identifier: MIT
// Rows of heads as the GPU computes on them: stored types become T, and heads become the outer index, so that each
// group of heads is one dense matrix. T: float, double.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device_buffer.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// Heads [first, first + groups * heads_per_group).
struct HeadGroups {
  int first = 0;
  int groups = 1;
  int heads_per_group = 1;
};

/// rows (groups, padded_tokens, width) from stored, in GPU memory, where width = num_heads / groups * head_dim; zeros
/// after the last token. kServing rounds to bfloat16.
template <class T>
void convert_rows(const Context& context, const HeadsView& stored, int groups, std::int64_t padded_tokens, T* rows,
                  Precision precision = Precision::kExact);

/// Uploads rows from host memory: (groups, num_tokens, heads_per_group * head_dim).
template <class T>
[[nodiscard]] DeviceBuffer<T> upload_rows(const Context& context, HeadsView x, HeadGroups heads,
                                          Precision precision = Precision::kExact);

/// Rounds in place to the nearest bfloat16, by way of fp32.
template <class T>
void round_to_bf16(const Context& context, DeviceBuffer<T>& values);

/// rows (heads, rows_per_head, dim) -= mean (heads, dim) in fp32; kServing rounds to bfloat16.
void subtract_mean(const Context& context, DeviceBuffer<double>& rows, const double* mean, std::int64_t rows_per_head,
                   int dim, Precision precision);

/// Tokens that go to the GPU at a time; 32 MiB of doubles.
[[nodiscard]] inline std::int64_t chunk_tokens(const HeadsView& x) {
  constexpr std::int64_t kValues = std::int64_t{1} << 22;
  return std::max<std::int64_t>(kValues / (static_cast<std::int64_t>(x.num_heads) * x.head_dim), 1);
}

/// task(begin, chunk) for the tokens of x, in order.
template <class Task>
void for_each_chunk(HeadsView x, const Task& task) {
  const std::int64_t step = chunk_tokens(x);
  for (std::int64_t begin = 0; begin < x.num_tokens; begin += step) {
    task(begin, x.tokens(begin, std::min(begin + step, x.num_tokens)));
  }
}

/// Whether the current GPU can run the kernels of this build.
[[nodiscard]] bool has_code_for_this_gpu();

}  // namespace oscar::cuda
