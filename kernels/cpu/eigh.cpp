// SPDX-License-Identifier: MIT
// Symmetric eigenproblems by Eigen (Householder tridiagonalisation, implicit QR), one matrix a task. Eigen is compiled
// for the instructions that every x86-64 processor has, so all of them find the same bits.
#include <Eigen/Eigenvalues>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {
namespace {

using ColumnMajor = Eigen::MatrixXd;
using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigenpairs solve(std::span<const double> symmetric, int dim) {
  check_finite(symmetric);
  const Eigen::SelfAdjointEigenSolver<ColumnMajor> solver(Eigen::Map<const RowMajor>(symmetric.data(), dim, dim));
  if (solver.info() != Eigen::Success) {
    throw NumericalError("the eigensolver did not converge", "", "use more tokens, or regularise the covariance");
  }
  Eigenpairs result{std::vector<double>(static_cast<std::size_t>(dim)), std::vector<double>(symmetric.size())};
  Eigen::Map<Eigen::VectorXd>(result.values.data(), dim) = solver.eigenvalues();
  Eigen::Map<RowMajor>(result.vectors.data(), dim, dim) = solver.eigenvectors();
  return result;
}

}  // namespace

std::vector<Eigenpairs> eigh(const MatrixStack& symmetric) {
  std::vector<Eigenpairs> results(static_cast<std::size_t>(symmetric.count));
  parallel_for(results.size(),
               [&](std::size_t i) { results[i] = solve(symmetric[static_cast<int>(i)], symmetric.dim); });
  return results;
}

}  // namespace oscar::cpu
