// SPDX-License-Identifier: MIT
// Symmetric eigenproblems by cuSOLVER, many matrices at a time.
#include <algorithm>
#include <string>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cuda/device_buffer.hpp"
#include "kernels/cuda/ops.hpp"

namespace oscar::cuda {
namespace {

constexpr int kMatricesAtATime = 256;  // bounds the workspace

class SolverParameters {
 public:
  SolverParameters() { OSCAR_CUDA_TRY(cusolverDnCreateParams(&handle_)); }
  ~SolverParameters() { cusolverDnDestroyParams(handle_); }
  SolverParameters(const SolverParameters&) = delete;
  SolverParameters& operator=(const SolverParameters&) = delete;
  [[nodiscard]] cusolverDnParams_t handle() const { return handle_; }

 private:
  cusolverDnParams_t handle_ = nullptr;
};

void check_info(const std::vector<int>& info) {
  for (const int status : info) {
    if (status == 0) continue;
    throw NumericalError("the eigensolver did not converge (cuSOLVER info " + std::to_string(status) + ")", "",
                         "use more tokens, or regularise the covariance");
  }
}

/// matrices (count, dim, dim) -> eigenvectors, each contiguous; values (count, dim).
void solve(const Context& context, int count, int dim, DeviceBuffer<double>& matrices, DeviceBuffer<double>& values) {
  const SolverParameters parameters;
  DeviceBuffer<int> info(context, static_cast<std::size_t>(count));
  std::size_t device_bytes = 0;
  std::size_t host_bytes = 0;
  OSCAR_CUDA_TRY(cusolverDnXsyevBatched_bufferSize(
      context.solver(), parameters.handle(), CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, dim, CUDA_R_64F,
      matrices.data(), dim, CUDA_R_64F, values.data(), CUDA_R_64F, &device_bytes, &host_bytes, count));
  DeviceBuffer<std::byte> device_workspace(context, device_bytes);
  std::vector<std::byte> host_workspace(host_bytes);
  OSCAR_CUDA_TRY(cusolverDnXsyevBatched(context.solver(), parameters.handle(), CUSOLVER_EIG_MODE_VECTOR,
                                        CUBLAS_FILL_MODE_LOWER, dim, CUDA_R_64F, matrices.data(), dim, CUDA_R_64F,
                                        values.data(), CUDA_R_64F, device_workspace.data(), device_bytes,
                                        host_workspace.data(), host_bytes, info.data(), count));
  check_info(info.to_host(context));
}

/// Eigenvector j, contiguous in `rows`, becomes column j.
Eigenpairs eigenpairs(std::span<const double> values, std::span<const double> rows, int dim) {
  Eigenpairs result{{values.begin(), values.end()}, std::vector<double>(rows.size())};
  for (int j = 0; j < dim; ++j) {
    for (int i = 0; i < dim; ++i) {
      result.vectors[static_cast<std::size_t>(i) * dim + j] = rows[static_cast<std::size_t>(j) * dim + i];
    }
  }
  return result;
}

}  // namespace

std::vector<Eigenpairs> eigh(const Context& context, const MatrixStack& symmetric) {
  check_finite(symmetric.data);
  const auto dim = static_cast<std::size_t>(symmetric.dim);
  std::vector<Eigenpairs> results;
  for (int first = 0; first < symmetric.count; first += kMatricesAtATime) {
    const int count = std::min(kMatricesAtATime, symmetric.count - first);
    DeviceBuffer<double> matrices(context, std::span(symmetric.data)
                                               .subspan(static_cast<std::size_t>(first) * dim * dim,
                                                        static_cast<std::size_t>(count) * dim * dim));
    DeviceBuffer<double> values(context, static_cast<std::size_t>(count) * dim);
    solve(context, count, symmetric.dim, matrices, values);
    const std::vector<double> vectors = matrices.to_host(context);
    const std::vector<double> eigenvalues = values.to_host(context);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      results.push_back(eigenpairs(std::span(eigenvalues).subspan(i * dim, dim),
                                   std::span(vectors).subspan(i * dim * dim, dim * dim), symmetric.dim));
    }
  }
  return results;
}

}  // namespace oscar::cuda
