// SPDX-License-Identifier: MIT
// Symmetric eigenproblems, and the few dense products that transforms are made of: square, row-major, fp64. Spectra
// have one fixed order and one fixed sign, so that equal input gives equal files:
//   C = U diag(values) U^T, values ascending, the largest |component| of every column of U positive (the first, if
//   several).
// Inside a cluster of equal eigenvalues the basis is arbitrary: compare subspaces there, never columns.
//
// From spectra to rotations, as the published fitter composes them (rotation/compute_kv_rotation.py of OSCAR): "plain"
// is the eigenvector matrix U, "r_h_pbr" U H P with H the Hadamard matrix and P the deal permutation. Both have any
// dimension:
//   H: orthonormal with entries +-1/sqrt(d): Sylvester's for powers of two, Paley's of order 12, 20 or 28 times
//     Sylvester's for 80, 96, 112, 160, 192 …; for other d, equal Sylvester blocks on the diagonal.
//   P: the order that spreads directions, sorted by eigenvalue, evenly over groups: bit reversal for powers of two
//     (OSCAR's P_br), its generalisation otherwise.
#pragma once

#include <span>
#include <string>
#include <string_view>
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

/// (dim, dim), row-major, H H^T = I. dim >= 1.
[[nodiscard]] std::vector<double> hadamard(int dim);

/// perm with P = I[:, perm], i.e. (A P)[:, j] = A[:, perm[j]], for eigenvalues that ascend: perm[deal(i)] = dim - 1 -
/// i.
[[nodiscard]] std::vector<int> deal_permutation(int dim);

enum class Composition { kPlain, kRHPbr };

[[nodiscard]] std::string_view name_of(Composition composition);
/// Throws UsageError that lists the names.
[[nodiscard]] Composition composition_from_name(const std::string& name);

/// One orthogonal matrix (dim, dim) per spectrum: rotated = native * rotation.
[[nodiscard]] MatrixStack compose(const std::vector<Spectrum>& spectra, Composition composition);

/// H itself ("hadamard", data-free).
[[nodiscard]] MatrixStack hadamard_rotation(int dim);

}  // namespace oscar
