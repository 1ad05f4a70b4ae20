// SPDX-License-Identifier: MIT
#include "kernels/cuda/product_table.hpp"

namespace oscar::cuda {

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
