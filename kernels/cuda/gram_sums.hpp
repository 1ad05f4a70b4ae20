// SPDX-License-Identifier: MIT
// Second moments on the GPU: where rows are cut, products over a few of them, and their sums in fp64. T is the type of
// the products: double, or float where fp64 is slow (Device::multiplies_in_f64).
#pragma once

#include <algorithm>

#include "kernels/cuda/context.hpp"
#include "kernels/types.hpp"

namespace oscar::cuda {

/// task(T()) for the T of this GPU.
template <class Task>
void with_product_type(const Context& context, const Task& task) {
  context.device().multiplies_in_f64() ? task(double()) : task(float());
}

/// Where tokens are cut: a block is one product for each group, a slab of whole blocks goes through the GPU at a time.
/// Both are functions of the shape alone and count from the first token, so that no bit of a sum depends on how much
/// of a layer lies on the GPU.
struct Cut {
  std::int64_t block_tokens, slab_tokens;

  [[nodiscard]] std::int64_t blocks(std::int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }
  /// Returns as many tokens as fit, a whole number of slabs and at least one.
  [[nodiscard]] std::int64_t chunk_tokens(const Context& context, std::int64_t bytes_per_token) const {
    const auto limit = static_cast<std::int64_t>(context.device().chunk_bytes());
    return slab_tokens * std::max<std::int64_t>(limit / (slab_tokens * bytes_per_token), 1);
  }
};

/// rows_per_token: of one group. values_per_token: of all groups.
template <class T>
[[nodiscard]] Cut cut_tokens(std::int64_t num_tokens, std::int64_t rows_per_token, std::int64_t values_per_token) {
  constexpr std::int64_t kBlockRows = sizeof(T) == 8 ? 512 : 128;  // fp32 sums of more rows lose digits
  constexpr std::int64_t kSlabValues = std::int64_t{1} << 21;      // 16 MiB of doubles, which an L2 cache holds
  const std::int64_t most = std::max<std::int64_t>(kSlabValues / values_per_token, 1);
  const std::int64_t block = std::clamp<std::int64_t>(kBlockRows / rows_per_token, 1, most);
  const std::int64_t needed = std::max<std::int64_t>((num_tokens + block - 1) / block, 1);
  return {block, std::min(most / block, needed) * block};
}

/// task(tokens of one slab) for the slabs of a chunk.
template <std::size_t n, class Task>
void for_each_slab(const Cut& cut, const std::array<HeadsView, n>& chunk, const Task& task) {
  for (std::int64_t begin = 0; begin < chunk[0].num_tokens; begin += cut.slab_tokens) {
    std::array<HeadsView, n> slab;
    for (std::size_t i = 0; i < n; ++i) {
      slab[i] = chunk[i].tokens(begin, std::min(begin + cut.slab_tokens, chunk[i].num_tokens));
    }
    task(slab);
  }
}

/// (groups, dim, dim)
template <class T>
class GramSums {
 public:
  GramSums(const Context& context, int groups, int dim);
  /// sums[group] += a^T b for a and b (groups, blocks * block_rows, dim): one product a block, added in order.
  void add(std::int64_t blocks, std::int64_t block_rows, const T* a, const T* b);
  /// Adds the upper triangles of the sums to both triangles of grams.
  void add_to(MatrixStack& grams) const;

 private:
  const Context& context_;
  int groups_, dim_;
  DeviceBuffer<T> products_;
  DeviceBuffer<double> sums_, diagonals_;
};

}  // namespace oscar::cuda
