// SPDX-License-Identifier: MIT
// Products of many matrices that lie anywhere in GPU memory, one call of cuBLAS for each list of them. Row-major, fp64.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/device_buffer.hpp"

namespace oscar::cuda {

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
