// SPDX-License-Identifier: MIT
// cuBLAS stores by columns: a row-major product c = a b is the product c^T = b^T a^T in its eyes.
#include "kernels/cuda/blas.hpp"

#include "kernels/cuda/device.hpp"

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

void ProductTable::add(List list, const double* a, const double* b, double* c) {
  lists_[list].a.push_back(a);
  lists_[list].b.push_back(b);
  lists_[list].c.push_back(c);
}

void ProductTable::upload(const Context& context) {
  std::vector<const double*> pointers;
  for (Operands& list : lists_) {
    list.first = pointers.size();
    for (const auto& operand : {list.a, list.b, list.c}) {
      pointers.insert(pointers.end(), operand.begin(), operand.end());
    }
  }
  pointers_ = DeviceBuffer<const double*>(context, std::span<const double* const>(pointers));
}

void ProductTable::multiply(const Context& context, List list, const ProductShape& s) const {
  const std::size_t count = lists_[list].a.size();
  if (count == 0 || s.m == 0 || s.n == 0 || s.k == 0) return;
  const double* const* const a = pointers_.data() + lists_[list].first;
  const double* const* const b = a + count;
  auto* const c = const_cast<double* const*>(b + count);
  const double beta = s.accumulate ? 1.0 : 0.0;
  // cuBLAS stores by columns: in its eyes the product is c^T = b^T a^T.
  OSCAR_CUDA_TRY(cublasDgemmBatched_64(context.blas(), s.b == Transpose::kYes ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N,
                                       s.n, s.m, s.k, &s.alpha, b, s.ldb, a, s.lda, &beta, c, s.ldc,
                                       static_cast<std::int64_t>(count)));
}

}  // namespace oscar::cuda
