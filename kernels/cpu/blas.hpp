// SPDX-License-Identifier: MIT
// Matrix products by OpenBLAS, always on the calling thread: parallelism lies above, where it cannot change results.
// Row-major; ld = elements from one row to the next.
#pragma once

#include <cstdint>

namespace oscar::cpu {

enum class Transpose { kNo, kYes };

/// c (m, n) = alpha * a (m, k) b, where b is (k, n), or (n, k) if transposed. c is overwritten, or added to.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  Transpose b = Transpose::kNo;
  double alpha = 1;
  bool accumulate = false;
};
void gemm(const Gemm& shape, const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double* c,
          std::int64_t ldc);
void gemm(const Gemm& shape, const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float* c,
          std::int64_t ldc);

/// upper triangle of gram (dim, dim) += rows^T rows, rows (count, dim); the lower triangle is not touched.
void add_gram_upper(const double* rows, std::int64_t count, std::int64_t dim, double* gram);

/// Makes OpenBLAS and LAPACK stay on the calling thread; the functions above do it themselves.
void use_one_blas_thread();

}  // namespace oscar::cpu
