// SPDX-License-Identifier: MIT
// Matrix products by cuBLAS in device memory, row-major, in IEEE fp64 or fp32 (no TF32). Every matrix is dense: the
// leading dimension is the number of columns.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.hpp"

namespace oscar::cuda {

enum class Transpose { kNo, kYes };

/// c (m, n) = alpha * a (m, k) b for each of `batch` matrices, where b is (k, n), or (n, k) if transposed; b is one
/// matrix for all if `shared_b`. c is overwritten, or added to.
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  Transpose b = Transpose::kNo;
  double alpha = 1;
  bool accumulate = false;
  std::int64_t batch = 1;
  bool shared_b = false;
};
void gemm(const Context& context, const Gemm& shape, const double* a, const double* b, double* c);
void gemm(const Context& context, const Gemm& shape, const float* a, const float* b, float* c);

/// products (batch, dim, dim) = a^T b for each of `batch` pairs of matrices (rows, dim).
void multiply_transposed(const Context& context, std::int64_t batch, std::int64_t rows, std::int64_t dim,
                         const double* a, const double* b, double* products);
void multiply_transposed(const Context& context, std::int64_t batch, std::int64_t rows, std::int64_t dim,
                         const float* a, const float* b, float* products);

}  // namespace oscar::cuda
