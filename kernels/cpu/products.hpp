// SPDX-License-Identifier: MIT
// Matrix products that are the same to the bit on every processor and for every number of threads: the order of their
// sums is part of their definition, and no library chooses it. They run on the calling thread. Row-major; ld = elements
// from one row to the next. Their speed beside OpenBLAS stands in tests/bench/README.md.
//
//   c[i][j] = alpha * s                  s = sum over k of a[i][k] b[k][j]
//
// in steps of at most 256 values of k. A step starts at zero and adds its products in the order of k, each by one fused
// multiply-add; then alpha * s is rounded and added to c, or is c in a first step that does not accumulate.
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

}  // namespace oscar::cpu
