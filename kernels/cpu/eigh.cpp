// SPDX-License-Identifier: MIT
// Symmetric eigenproblems by LAPACK's divide and conquer (dsyevd), one matrix a task.
#include <lapacke.h>

#include <string>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/blas.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {
namespace {

Eigenpairs solve(std::span<const double> symmetric, int dim) {
  check_finite(symmetric);
  std::vector<double> rows(symmetric.begin(), symmetric.end());
  Eigenpairs result{std::vector<double>(static_cast<std::size_t>(dim)), std::vector<double>(rows.size())};
  const lapack_int info = LAPACKE_dsyevd(LAPACK_COL_MAJOR, 'V', 'L', dim, rows.data(), dim, result.values.data());
  if (info != 0) {
    throw NumericalError("the eigensolver did not converge (LAPACK info " + std::to_string(info) + ")", "",
                         "use more tokens, or regularise the covariance");
  }
  // Eigenvector j is contiguous in `rows`; the result has it as column j.
  for (int j = 0; j < dim; ++j) {
    for (int i = 0; i < dim; ++i) {
      result.vectors[static_cast<std::size_t>(i) * dim + j] = rows[static_cast<std::size_t>(j) * dim + i];
    }
  }
  return result;
}

}  // namespace

std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) {
  use_one_blas_thread();
  std::vector<Eigenpairs> results(static_cast<std::size_t>(symmetric.count));
  parallel_for(results.size(),
               [&](std::size_t i) { results[i] = solve(symmetric[static_cast<int>(i)], symmetric.dim); });
  return results;
}

}  // namespace oscar::cpu
