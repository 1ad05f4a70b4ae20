// SPDX-License-Identifier: MIT
#include "kernels/arguments.hpp"
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/gram_sums.hpp"
#include "kernels/cuda/launch.hpp"

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

}  // namespace oscar::cuda
