// SPDX-License-Identifier: MIT
// cuBLAS stores by columns: a row-major product c = a b is the product c^T = b^T a^T in its eyes.
#include "kernels/cuda/blas.hpp"

#include "kernels/cuda/check.hpp"

namespace oscar::cuda {
namespace {

cublasOperation_t operation(const Gemm& s) { return s.b == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N; }
std::int64_t columns_of_b(const Gemm& s) { return s.b == Transpose::kYes ? s.k : s.n; }
std::int64_t stride_of_b(const Gemm& s) { return s.shared_b ? 0 : s.k * s.n; }
bool is_empty(const Gemm& s) { return s.m == 0 || s.n == 0 || s.k == 0 || s.batch == 0; }

}  // namespace

void gemm(const Context& context, const Gemm& s, const double* a, const double* b, double* c) {
  if (is_empty(s)) return;
  const double beta = s.accumulate ? 1.0 : 0.0;
  OSCAR_CUDA_TRY(cublasDgemmStridedBatched_64(context.blas(), operation(s), CUBLAS_OP_N, s.n, s.m, s.k, &s.alpha, b,
                                              columns_of_b(s), stride_of_b(s), a, s.k, s.m * s.k, &beta, c, s.n,
                                              s.m * s.n, s.batch));
}

void gemm(const Context& context, const Gemm& s, const float* a, const float* b, float* c) {
  if (is_empty(s)) return;
  const auto alpha = static_cast<float>(s.alpha);
  const float beta = s.accumulate ? 1.0F : 0.0F;
  OSCAR_CUDA_TRY(cublasSgemmStridedBatched_64(context.blas(), operation(s), CUBLAS_OP_N, s.n, s.m, s.k, &alpha, b,
                                              columns_of_b(s), stride_of_b(s), a, s.k, s.m * s.k, &beta, c, s.n,
                                              s.m * s.n, s.batch));
}

void multiply_transposed(const Context& context, std::int64_t batch, std::int64_t rows, std::int64_t dim,
                         const double* a, const double* b, double* products) {
  const double one = 1.0, zero = 0.0;
  OSCAR_CUDA_TRY(cublasDgemmStridedBatched_64(context.blas(), CUBLAS_OP_N, CUBLAS_OP_T, dim, dim, rows, &one, b, dim,
                                              rows * dim, a, dim, rows * dim, &zero, products, dim, dim * dim, batch));
}

void multiply_transposed(const Context& context, std::int64_t batch, std::int64_t rows, std::int64_t dim,
                         const float* a, const float* b, float* products) {
  const float one = 1.0F, zero = 0.0F;
  OSCAR_CUDA_TRY(cublasGemmStridedBatchedEx_64(context.blas(), CUBLAS_OP_N, CUBLAS_OP_T, dim, dim, rows, &one, b,
                                               CUDA_R_32F, dim, rows * dim, a, CUDA_R_32F, dim, rows * dim, &zero,
                                               products, CUDA_R_32F, dim, dim * dim, batch, CUBLAS_COMPUTE_32F_PEDANTIC,
                                               CUBLAS_GEMM_DEFAULT));
}

}  // namespace oscar::cuda
