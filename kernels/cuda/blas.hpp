// SPDX-License-Identifier: MIT
// Products of matrices on the GPU, by cuBLAS: batches at fixed distances, and lists of matrices that lie anywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/context.hpp"

namespace oscar::cuda {

// Matrix products by cuBLAS in device memory, row-major, in IEEE fp64 or fp32 (no TF32). Every matrix is dense: the
// leading dimension is the number of columns.

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

// Products of many matrices that lie anywhere in GPU memory, one call of cuBLAS for each list of them. Row-major, fp64.

/// c (m, n) = alpha * a (m, k) b, or c += …, where b is (k, n), or (n, k) if transposed. ld: from one row to the next.
struct ProductShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  Transpose b = Transpose::kNo;
  double alpha = 1;
  bool accumulate = false;
};

class ProductTable {
 public:
  using List = std::size_t;

  explicit ProductTable(std::size_t lists) : lists_(lists) {}

  void add(List list, const double* a, const double* b, double* c);
  /// Sends all lists to the GPU, after the last add().
  void upload(const Context& context);
  /// Every product of the list.
  void multiply(const Context& context, List list, const ProductShape& shape) const;

 private:
  struct Operands {
    std::vector<const double*> a, b, c;
    std::size_t first = 0;  // in pointers_: a, then b, then c
  };
  std::vector<Operands> lists_;
  DeviceBuffer<const double*> pointers_;
};

}  // namespace oscar::cuda
