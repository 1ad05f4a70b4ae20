// SPDX-License-Identifier: MIT
#include "kernels/arguments.hpp"
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/gram_sums.hpp"
#include "kernels/cuda/launch.hpp"

namespace oscar::cuda {
namespace {

/// sums (groups, size) += products (groups, blocks, size), block by block.
template <class T>
__global__ void add_products(const T* products, std::int64_t blocks, std::int64_t size, double* sums) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= size) return;
  const T* product = products + blockIdx.y * blocks * size + i;
  double& sum = sums[blockIdx.y * size + i];
  double total = sum;
  for (std::int64_t block = 0; block < blocks; ++block) total += product[block * size];
  sum = total;
}

}  // namespace

template <class T>
GramSums<T>::GramSums(const Context& context, int groups, int dim)
    : context_(context), groups_(groups), dim_(dim), sums_(context, static_cast<std::size_t>(groups) * dim * dim) {
  sums_.fill_with_zeros(context);
}

template <class T>
void GramSums<T>::add(std::int64_t blocks, std::int64_t block_rows, const T* a, const T* b) {
  const std::int64_t size = std::int64_t{dim_} * dim_;
  const auto needed = static_cast<std::size_t>(groups_ * blocks * size);
  if (products_.size() < needed) products_ = DeviceBuffer<T>(context_, needed);
  multiply_transposed(context_, groups_ * blocks, block_rows, dim_, a, b, products_.data());
  const dim3 grid(blocks_for(static_cast<std::size_t>(size)), static_cast<unsigned>(groups_));
  add_products<<<grid, kThreads, 0, context_.stream()>>>(products_.data(), blocks, size, sums_.data());
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
