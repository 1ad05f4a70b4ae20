// SPDX-License-Identifier: MIT
// Second moments of values weighted by how their keys meet the queries, w = k form k^T. Weights are made in fp64, stay
// on the GPU, and multiply one side of a product, so that no root is rounded.
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/chunks.hpp"
#include "kernels/cuda/gram_sums.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {
namespace {

constexpr int kWarp = 32;

/// One warp a row: weights (rows) = a b^T for rows of a and b (rows, dim).
__global__ void dot_rows(const double* a, const double* b, std::int64_t rows, int dim, double* weights) {
  const std::int64_t row = task_index() / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  double sum = 0;
  for (int i = lane; i < dim; i += kWarp) sum += a[row * dim + i] * b[row * dim + i];
  for (int step = kWarp / 2; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffU, sum, step);
  if (lane == 0) weights[row] = sum;
}

/// One block of threads a head: sums (heads) += weights (heads, tokens).
__global__ void add_weights(const double* weights, std::int64_t tokens, double* sums) {
  double sum = 0;
  for (std::int64_t t = threadIdx.x; t < tokens; t += kThreads) sum += weights[blockIdx.x * tokens + t];
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] += sum;
}

/// weighted (rows, dim) = max(weights (rows), 0) * values (rows, dim).
template <class T>
__global__ void weigh_rows(const T* values, const double* weights, std::int64_t rows, int dim, T* weighted) {
  const std::int64_t i = task_index();
  if (i >= rows * dim) return;
  const double weight = weights[i / dim];
  weighted[i] = static_cast<T>((weight < 0 ? 0.0 : weight) * static_cast<double>(values[i]));
}

/// What one slab needs. Rows are (heads, tokens, dim). Once keys have become weights, values take their place.
template <class T>
class WeightedSums {
 public:
  WeightedSums(const Context& context, const MatrixStack& forms, int value_dim, std::int64_t slab_tokens)
      : context_(context),
        heads_(forms.count),
        key_dim_(forms.dim),
        value_dim_(value_dim),
        forms_(context, std::span(forms.data)),
        rows_(context, static_cast<std::size_t>(slab_tokens * heads_ * std::max(key_dim_, value_dim_))),
        products_(context, rows_.size()),
        weights_(context, static_cast<std::size_t>(slab_tokens * heads_)),
        weight_sums_(context, static_cast<std::size_t>(heads_)),
        sums_(context, heads_, value_dim) {
    weight_sums_.fill_with_zeros(context);
  }

  void add(const HeadsView& k, const HeadsView& v, std::int64_t blocks, std::int64_t block_tokens) {
    const std::int64_t tokens = blocks * block_tokens;
    weigh(k, tokens);
    T* const values = reinterpret_cast<T*>(rows_.data());
    T* const weighted = reinterpret_cast<T*>(products_.data());
    convert_rows(context_, v, heads_, tokens, values);
    const std::int64_t rows = heads_ * tokens;
    weigh_rows<<<blocks_for(static_cast<std::size_t>(rows * value_dim_)), kThreads, 0, context_.stream()>>>(
        values, weights_.data(), rows, value_dim_, weighted);
    OSCAR_CUDA_LAUNCHED("weigh_rows");
    sums_.add(blocks, block_tokens, weighted, values);
  }

  void add_to(MatrixStack& grams, std::span<double> weights) const {
    const std::vector<double> added = weight_sums_.to_host(context_);
    sums_.add_to(grams);
    for (std::size_t h = 0; h < added.size(); ++h) weights[h] += added[h];
  }

 private:
  void weigh(const HeadsView& k, std::int64_t tokens) {
    convert_rows(context_, k, heads_, tokens, rows_.data());
    gemm(context_, {.m = tokens, .n = key_dim_, .k = key_dim_, .batch = heads_}, rows_.data(), forms_.data(),
         products_.data());
    dot_rows<<<blocks_for(static_cast<std::size_t>(heads_ * tokens * kWarp)), kThreads, 0, context_.stream()>>>(
        rows_.data(), products_.data(), heads_ * tokens, key_dim_, weights_.data());
    OSCAR_CUDA_LAUNCHED("dot_rows");
    add_weights<<<static_cast<unsigned>(heads_), kThreads, 0, context_.stream()>>>(weights_.data(), tokens,
                                                                                   weight_sums_.data());
    OSCAR_CUDA_LAUNCHED("add_weights");
  }

  const Context& context_;
  int heads_, key_dim_, value_dim_;
  DeviceBuffer<double> forms_, rows_, products_, weights_, weight_sums_;
  GramSums<T> sums_;
};

template <class T>
void add_weighted_grams(const Context& context, std::span<const Views<2>> parts, const MatrixStack& forms,
                        MatrixStack& grams, std::span<double> weights) {
  const auto& [k, v] = parts[0];
  const Cut cut = cut_tokens<T>(most_tokens(parts), 1, std::int64_t{k.num_heads} * std::max(k.head_dim, v.head_dim));
  WeightedSums<T> sums(context, forms, v.head_dim, cut.slab_tokens);
  const auto pieces = pieces_of(parts, cut.chunk_tokens(context, k.bytes_per_token() + v.bytes_per_token()));
  for_each_chunk<2>(context, pieces, [&](std::size_t, const auto& chunk) {
    for_each_slab(cut, chunk, [&](const auto& slab) {
      sums.add(slab[0], slab[1], cut.blocks(slab[0].num_tokens), cut.block_tokens);
    });
  });
  sums.add_to(grams, weights);
}

}  // namespace

void accumulate_weighted_grams(const Context& context, std::span<const HeadsView> keys, const MatrixStack& forms,
                               std::span<const HeadsView> values, MatrixStack& grams, std::span<double> weights) {
  OSCAR_CHECK(weights.size() == static_cast<std::size_t>(grams.count) && keys.size() == values.size());
  std::vector<Views<2>> views;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const HeadsView &k = keys[i], &v = values[i];
    OSCAR_CHECK(k.head_dim == forms.dim && k.num_heads == forms.count && k.num_tokens == v.num_tokens);
    OSCAR_CHECK(v.head_dim == grams.dim && v.num_heads == grams.count && k.num_heads == v.num_heads);
    OSCAR_CHECK(k.dtype == keys[0].dtype && v.dtype == values[0].dtype);
    views.push_back({k, v});
  }
  if (views.empty()) return;
  with_product_type(context,
                    [&](auto type) { add_weighted_grams<decltype(type)>(context, views, forms, grams, weights); });
}

}  // namespace oscar::cuda
