// SPDX-License-Identifier: MIT
// Second moments: rows as they are stored, values weighted by how their keys meet the queries, and the sums of
// products.
#include "kernels/arguments.hpp"
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/chunks.hpp"
#include "kernels/cuda/gram_sums.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/rows.hpp"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

namespace {

/// sums (groups, dim, dim) += products (groups, blocks, dim, dim), block by block, with diagonals (groups, blocks, dim)
/// in place of theirs unless null.
template <class T>
__global__ void add_products(const T* products, const double* diagonals, std::int64_t blocks, int dim, double* sums) {
  const std::int64_t size = std::int64_t{dim} * dim, i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size) return;
  const bool replaced = diagonals != nullptr && i % (dim + 1) == 0;
  const std::int64_t first = blockIdx.y * blocks;
  double total = sums[blockIdx.y * size + i];
  for (std::int64_t block = first; block < first + blocks; ++block) {
    total += replaced ? diagonals[block * dim + i / (dim + 1)] : static_cast<double>(products[block * size + i]);
  }
  sums[blockIdx.y * size + i] = total;
}

/// One block of threads a product: its diagonal in fp64. Where both sides are equal and of few bits, as bfloat16 rows
/// are, the tails of squares are more often small than large, and fp32 sums of them come out too small.
__global__ void sum_diagonals(const float* a, const float* b, std::int64_t rows, int dim, double* diagonals) {
  for (int column = static_cast<int>(threadIdx.x); column < dim; column += kThreads) {
    double sum = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t i = (blockIdx.x * rows + row) * dim + column;
      sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    }
    diagonals[std::int64_t{blockIdx.x} * dim + column] = sum;
  }
}

}  // namespace

template <class T>
GramSums<T>::GramSums(const Context& context, int groups, int dim)
    : context_(context), groups_(groups), dim_(dim), sums_(context, static_cast<std::size_t>(groups) * dim * dim) {
  sums_.fill_with_zeros(context);
}

template <class T>
void GramSums<T>::add(std::int64_t blocks, std::int64_t block_rows, const T* a, const T* b) {
  const std::size_t count = static_cast<std::size_t>(groups_ * blocks), dim = static_cast<std::size_t>(dim_);
  if (products_.size() < count * dim * dim) products_ = DeviceBuffer<T>(context_, count * dim * dim);
  multiply_transposed(context_, groups_ * blocks, block_rows, dim_, a, b, products_.data());
  if constexpr (std::is_same_v<T, float>) {
    if (diagonals_.size() < count * dim) diagonals_ = DeviceBuffer<double>(context_, count * dim);
    sum_diagonals<<<static_cast<unsigned>(count), kThreads, 0, context_.stream()>>>(a, b, block_rows, dim_,
                                                                                    diagonals_.data());
    OSCAR_CUDA_LAUNCHED("sum_diagonals");
  }
  const dim3 grid(blocks_for(dim * dim), static_cast<unsigned>(groups_));
  add_products<<<grid, kThreads, 0, context_.stream()>>>(products_.data(), diagonals_.data(), blocks, dim_,
                                                         sums_.data());
  OSCAR_CUDA_LAUNCHED("add_products");
}

template <class T>
void GramSums<T>::add_to(MatrixStack& grams) const {
  OSCAR_CHECK(grams.count == groups_ && grams.dim == dim_);
  const std::vector<double> host = sums_.to_host(context_);
  const std::size_t size = static_cast<std::size_t>(dim_) * dim_;
  for (int i = 0; i < groups_; ++i) {
    add_symmetric(std::span(host).subspan(static_cast<std::size_t>(i) * size, size), grams[i], dim_);
  }
}

template class GramSums<float>;
template class GramSums<double>;

// Second moments of rows as they are stored.

namespace {

template <class T>
void add_grams(const Context& context, std::span<const Views<1>> parts, MatrixStack& grams) {
  const HeadsView& x = parts[0][0];
  const int g = x.num_heads / grams.count;
  const Cut cut = cut_tokens<T>(most_tokens(parts), g, std::int64_t{x.num_heads} * x.head_dim);
  GramSums<T> sums(context, grams.count, grams.dim);
  DeviceBuffer<T> rows(context, static_cast<std::size_t>(cut.slab_tokens) * x.num_heads * x.head_dim);
  const auto pieces = pieces_of(parts, cut.chunk_tokens(context, x.bytes_per_token()));
  for_each_chunk<1>(context, pieces, [&](std::size_t, const auto& chunk) {
    for_each_slab(cut, chunk, [&](const auto& slab) {
      const std::int64_t blocks = cut.blocks(slab[0].num_tokens);
      convert_rows(context, slab[0], grams.count, blocks * cut.block_tokens, rows.data());
      sums.add(blocks, cut.block_tokens * g, rows.data(), rows.data());
    });
  });
  sums.add_to(grams);
}

}  // namespace

void accumulate_grams(const Context& context, std::span<const HeadsView> parts, MatrixStack& grams) {
  std::vector<Views<1>> views;
  for (const HeadsView& x : parts) {
    OSCAR_CHECK(x.head_dim == grams.dim && x.num_heads % grams.count == 0 && x.num_heads == parts[0].num_heads);
    OSCAR_CHECK(x.dtype == parts[0].dtype);
    views.push_back({x});
  }
  if (views.empty()) return;
  with_product_type(context, [&](auto type) { add_grams<decltype(type)>(context, views, grams); });
}

// Second moments of values weighted by how their keys meet the queries, w = k form k^T. Weights are made in fp64, stay
// on the GPU, and multiply one side of a product, so that no root is rounded.

namespace {

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
