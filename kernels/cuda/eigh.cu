// SPDX-License-Identifier: MIT
// Eigenproblems in one batch by cuSOLVER; each result is checked, and what fails is solved alone.
#include <algorithm>
#include <cfloat>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/context.hpp"
#include "kernels/cuda/ops.hpp"
#include "kernels/cuda/warp.cuh"

namespace oscar::cuda {

/// Symmetric matrices (count, dim, dim) and their eigenpairs: row j of vectors[i] belongs to values[i, j].
struct EigenBatch {
  int count, dim;
  DeviceBuffer<double> matrices, vectors, values;
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(dim) * dim; }
};

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

/// Returns for each problem the largest |A v - value v| relative to its largest |value|, or |<v_i, v_j> - (i == j)| if
/// that is more; infinite if anything is NaN or the values do not ascend.
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

/// Vectors as columns replace the matrices.
void transpose_vectors(const Context& context, EigenBatch& batch) {
  transpose<<<blocks_for(batch.vectors.size()), kThreads, 0, context.stream()>>>(batch.vectors.data(), batch.count,
                                                                                 batch.dim, batch.matrices.data());
  OSCAR_CUDA_LAUNCHED("transpose");
}

/// Of eigen_errors(). Rounding leaves about 1e-14, a solver that stopped early much more.
constexpr double kLargestError = 1e-11;
constexpr std::size_t kLargestBatch = 1 << 15;  // cuSOLVER has refused twice as many
constexpr std::size_t kChunksPerBatch = 4;      // of Device::chunk_bytes(): 512 matrices of 128 x 128

class SolverParameters {
 public:
  SolverParameters() {
    OSCAR_CUDA_TRY(cusolverDnCreateParams(&handle_));
#if CUDART_VERSION >= 13000
    // Or the algorithm, and with it the result, could change with the number of matrices.
    (void)cusolverDnSetAdvOptions(handle_, CUSOLVERDN_SYEVBATCHED, CUSOLVER_ALG_1);
#endif
  }
  ~SolverParameters() { cusolverDnDestroyParams(handle_); }
  SolverParameters(const SolverParameters&) = delete;
  SolverParameters& operator=(const SolverParameters&) = delete;
  [[nodiscard]] cusolverDnParams_t handle() const { return handle_; }

 private:
  cusolverDnParams_t handle_ = nullptr;
};

/// solve(workspace on the GPU, workspace here, info) -> info (count): not 0 where there was no convergence.
template <class Solve>
std::vector<int> with_workspace(const Context& context, std::size_t device_bytes, std::size_t host_bytes, int count,
                                const Solve& solve) {
  DeviceBuffer<std::byte> on_device(context, device_bytes);
  std::vector<std::byte> on_host(host_bytes);
  DeviceBuffer<int> info(context, static_cast<std::size_t>(count));
  solve(on_device.data(), on_host.data(), info.data());
  return info.to_host(context);
}

/// Eigenvectors replace the matrices.
std::vector<int> solve_together(const Context& context, EigenBatch& batch, const std::function<void()>& meanwhile) {
  const SolverParameters parameters;
  std::size_t device_bytes = 0, host_bytes = 0;
  OSCAR_CUDA_TRY(cusolverDnXsyevBatched_bufferSize(context.solver(), parameters.handle(), CUSOLVER_EIG_MODE_VECTOR,
                                                   CUBLAS_FILL_MODE_LOWER, batch.dim, CUDA_R_64F, batch.vectors.data(),
                                                   batch.dim, CUDA_R_64F, batch.values.data(), CUDA_R_64F,
                                                   &device_bytes, &host_bytes, batch.count));
  return with_workspace(context, device_bytes, host_bytes, batch.count, [&](void* on_device, void* on_host, int* info) {
    OSCAR_CUDA_TRY(cusolverDnXsyevBatched(context.solver(), parameters.handle(), CUSOLVER_EIG_MODE_VECTOR,
                                          CUBLAS_FILL_MODE_LOWER, batch.dim, CUDA_R_64F, batch.vectors.data(),
                                          batch.dim, CUDA_R_64F, batch.values.data(), CUDA_R_64F, on_device,
                                          device_bytes, on_host, host_bytes, info, batch.count));
    meanwhile();
  });
}

void copy_on_gpu(const Context& context, double* to, const double* from, std::size_t count) {
  OSCAR_CUDA_TRY(cudaMemcpyAsync(to, from, count * sizeof(double), cudaMemcpyDeviceToDevice, context.stream()));
}

void copy_to_host(const Context& context, const double* from, std::span<double> to) {
  OSCAR_CUDA_TRY(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, context.stream()));
}

/// By another algorithm, divide and conquer.
int solve_alone(const Context& context, EigenBatch& batch, std::size_t i) {
  const SolverParameters parameters;
  double* const vectors = batch.vectors.data() + i * batch.size();
  double* const values = batch.values.data() + i * static_cast<std::size_t>(batch.dim);
  copy_on_gpu(context, vectors, batch.matrices.data() + i * batch.size(), batch.size());
  std::size_t device_bytes = 0, host_bytes = 0;
  OSCAR_CUDA_TRY(cusolverDnXsyevd_bufferSize(context.solver(), parameters.handle(), CUSOLVER_EIG_MODE_VECTOR,
                                             CUBLAS_FILL_MODE_LOWER, batch.dim, CUDA_R_64F, vectors, batch.dim,
                                             CUDA_R_64F, values, CUDA_R_64F, &device_bytes, &host_bytes));
  return with_workspace(context, device_bytes, host_bytes, 1,
                        [&](void* on_device, void* on_host, int* info) {
                          OSCAR_CUDA_TRY(cusolverDnXsyevd(
                              context.solver(), parameters.handle(), CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER,
                              batch.dim, CUDA_R_64F, vectors, batch.dim, CUDA_R_64F, values, CUDA_R_64F, on_device,
                              device_bytes, on_host, host_bytes, info));
                        })
      .front();
}

/// The problems whose results cannot be used, by cuSOLVER's word or by their errors.
std::vector<std::size_t> unsolved(const std::vector<int>& info, const std::vector<double>& errors) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < info.size(); ++i) {
    if (info[i] != 0 || !(errors[i] <= kLargestError)) indices.push_back(i);
  }
  return indices;
}

/// Solves all in one call; what that leaves unsolved comes back. meanwhile(): while the GPU is busy.
std::vector<std::size_t> try_together(const Context& context, EigenBatch& batch,
                                      const std::function<void()>& meanwhile) {
  Status& status = context.device().status();
  std::vector<int> info;
  try {
    info = solve_together(context, batch, meanwhile);
  } catch (const BackendUnavailable& error) {
    status.notice("eigenproblems are solved one by one, since the batched solver failed: " + std::string(error.what()));
    std::vector<std::size_t> all(static_cast<std::size_t>(batch.count));
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }
  std::vector<std::size_t> left = unsolved(info, eigen_errors(context, batch));
  if (!left.empty()) {
    status.notice(std::to_string(left.size()) + " of " + std::to_string(batch.count) +
                  " eigenproblems failed their check and are solved again, one by one");
  }
  return left;
}

/// Problems [first, first + results.size()).
void solve(const Context& context, const MatrixStack& symmetric, std::size_t first, std::span<Eigenpairs> results) {
  const std::size_t dim = static_cast<std::size_t>(symmetric.dim), size = dim * dim;
  const auto matrices = std::span(symmetric.data).subspan(first * size, results.size() * size);
  EigenBatch batch{.count = static_cast<int>(results.size()),
                   .dim = symmetric.dim,
                   .matrices = {context, matrices},
                   .vectors = {context, matrices.size()},
                   .values = {context, results.size() * dim}};
  copy_on_gpu(context, batch.vectors.data(), batch.matrices.data(), matrices.size());
  const std::vector<std::size_t> left = try_together(context, batch, [&] {
    for (Eigenpairs& pairs : results) pairs.vectors.resize(size);  // costs as much as copying them
  });
  std::vector<int> info(results.size());
  for (const std::size_t i : left) info[i] = solve_alone(context, batch, i);
  if (!left.empty()) {
    const std::vector<std::size_t> lost = unsolved(info, eigen_errors(context, batch));
    if (!lost.empty()) {
      throw NumericalError("the eigensolver did not converge",
                           "matrix " + std::to_string(first + lost.front()) + " of " + std::to_string(symmetric.count),
                           "use more tokens, or regularise the covariance");
    }
  }
  transpose_vectors(context, batch);
  const std::vector<double> values = batch.values.to_host(context);
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i].vectors.resize(size);
    results[i].values.assign(values.begin() + static_cast<std::ptrdiff_t>(i * dim),
                             values.begin() + static_cast<std::ptrdiff_t>((i + 1) * dim));
    copy_to_host(context, batch.matrices.data() + i * size, results[i].vectors);
  }
  context.synchronize();
}

}  // namespace

std::vector<Eigenpairs> eigh(const Context& context, const MatrixStack& symmetric) {
  check_finite(symmetric.data);
  const std::size_t bytes = symmetric.data.size() * sizeof(double) / std::max<std::size_t>(symmetric.count, 1);
  const std::size_t limit = kChunksPerBatch * context.device().chunk_bytes();
  const std::size_t most = std::clamp<std::size_t>(limit / std::max<std::size_t>(bytes, 1), 1, kLargestBatch);
  std::vector<Eigenpairs> results(static_cast<std::size_t>(symmetric.count));
  for (std::size_t first = 0; first < results.size(); first += most) {
    solve(context, symmetric, first, std::span(results).subspan(first, std::min(most, results.size() - first)));
  }
  return results;
}

}  // namespace oscar::cuda
