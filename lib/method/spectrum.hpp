// SPDX-License-Identifier: MIT
// Symmetric eigenproblems, and the few dense products that transforms are made of: square, row-major, fp64. Spectra
// have one fixed order and one fixed sign, so that equal input gives equal files:
//   C = U diag(values) U^T, values ascending, the largest |component| of every column of U positive (the first, if
//   several).
// Inside a cluster of equal eigenvalues the basis is arbitrary: compare subspaces there, never columns.
#pragma once

#include <span>
#include <vector>

#include "kernels/backend.hpp"

namespace oscar {

struct Spectrum {
  int dim = 0;
  std::vector<double> values;   // (dim)
  std::vector<double> vectors;  // (dim, dim), row-major, eigenvectors in columns
};

using Matrix = std::vector<double>;

/// a b.
[[nodiscard]] Matrix multiply(std::span<const double> a, std::span<const double> b, int dim);
[[nodiscard]] Matrix transposed(std::span<const double> a, int dim);
/// U diag(max(values, 1e-12)^power) U^T of a positive semidefinite matrix.
[[nodiscard]] Matrix power_of(const Spectrum& spectrum, double power);
[[nodiscard]] double trace(std::span<const double> a, int dim);
[[nodiscard]] std::vector<double> rounded_to_f32(std::vector<double> values);
[[nodiscard]] MatrixStack rounded_to_f32(MatrixStack stack);

/// Returns one spectrum per matrix, of its symmetric part. Tiny negative eigenvalues of a rank-deficient covariance
/// are kept as the solver gives them. Throws NumericalError if an entry is not finite or the solver fails.
[[nodiscard]] std::vector<Spectrum> decompose(const MatrixStack& covariance, Backend& backend);

/// Returns the spectra of every matrix of many stacks, in order; eigenproblems of equal size are solved in one call.
/// Throws NumericalError if an entry is not finite or the solver fails.
[[nodiscard]] std::vector<std::vector<Spectrum>> decompose(const std::vector<const MatrixStack*>& covariances,
                                                           Backend& backend);

/// Returns the mean over the matrices of a stack: the layer's covariance from its heads'.
[[nodiscard]] MatrixStack mean_over_heads(const MatrixStack& covariance);

}  // namespace oscar
