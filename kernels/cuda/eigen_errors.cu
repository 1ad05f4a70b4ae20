// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cfloat>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/eigen_errors.hpp"

namespace oscar::cuda {
namespace {

constexpr std::int64_t kSliceValues = std::int64_t{1} << 18;  // of a buffer: 2 MiB

__device__ double finite_or_worst(double error) { return isfinite(error) ? error : INFINITY; }

/// One block of threads a problem. images: v A of each vector; dots: <v_i, v_j>.
__global__ void largest_error(const double* vectors, const double* values, const double* images, const double* dots,
                              int dim, double* errors) {
  const std::int64_t first = std::int64_t{blockIdx.x} * dim * dim;
  const double* value = values + std::int64_t{blockIdx.x} * dim;
  const double scale = fmax(fmax(fabs(value[0]), fabs(value[dim - 1])), DBL_MIN);
  double worst = 0;
  for (int i = static_cast<int>(threadIdx.x); i < dim * dim; i += kThreads) {
    const int row = i / dim, column = i % dim;
    const double residual = fabs(images[first + i] - value[row] * vectors[first + i]) / scale;
    const double skew = fabs(dots[first + i] - (row == column ? 1.0 : 0.0));
    worst = fmax(worst, fmax(finite_or_worst(residual), finite_or_worst(skew)));
    if (column == 0 && row > 0 && !(value[row - 1] <= value[row])) worst = INFINITY;
  }
  worst = block_max(worst);
  if (threadIdx.x == 0) errors[blockIdx.x] = worst;
}

__global__ void transpose(const double* matrices, std::int64_t count, int dim, double* transposed) {
  const std::int64_t i = task_index();
  if (i >= count * dim * dim) return;
  const std::int64_t matrix = i / (dim * dim);
  const int row = static_cast<int>(i / dim % dim), column = static_cast<int>(i % dim);
  transposed[i] = matrices[(matrix * dim + column) * dim + row];
}

}  // namespace

std::vector<double> eigen_errors(const Context& context, const EigenBatch& batch) {
  const std::int64_t size = static_cast<std::int64_t>(batch.size());
  const std::int64_t slice = std::clamp<std::int64_t>(kSliceValues / size, 1, batch.count);
  DeviceBuffer<double> images(context, static_cast<std::size_t>(slice * size));
  DeviceBuffer<double> dots(context, images.size());
  DeviceBuffer<double> errors(context, static_cast<std::size_t>(batch.count));
  for (std::int64_t first = 0; first < batch.count; first += slice) {
    const double* const vectors = batch.vectors.data() + first * size;
    Gemm shape{.m = batch.dim, .n = batch.dim, .k = batch.dim, .batch = std::min(slice, batch.count - first)};
    gemm(context, shape, vectors, batch.matrices.data() + first * size, images.data());
    shape.b = Transpose::kYes;
    gemm(context, shape, vectors, vectors, dots.data());
    largest_error<<<static_cast<unsigned>(shape.batch), kThreads, 0, context.stream()>>>(
        vectors, batch.values.data() + first * batch.dim, images.data(), dots.data(), batch.dim, errors.data() + first);
    OSCAR_CUDA_LAUNCHED("largest_error");
  }
  return errors.to_host(context);
}

void transpose_vectors(const Context& context, EigenBatch& batch) {
  transpose<<<blocks_for(batch.vectors.size()), kThreads, 0, context.stream()>>>(batch.vectors.data(), batch.count,
                                                                                 batch.dim, batch.matrices.data());
  OSCAR_CUDA_LAUNCHED("transpose");
}

}  // namespace oscar::cuda
