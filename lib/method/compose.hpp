// SPDX-License-Identifier: MIT
// From spectra to rotations, as the published fitter composes them (rotation/compute_kv_rotation.py of OSCAR): "plain"
// is the eigenvector matrix U, "r_h_pbr" U H P with H the Hadamard matrix and P the deal permutation. Both have any
// dimension:
//   H: orthonormal with entries +-1/sqrt(d): Sylvester's for powers of two, Paley's of order 12, 20 or 28 times
//     Sylvester's for 80, 96, 112, 160, 192 …; for other d, equal Sylvester blocks on the diagonal.
//   P: the order that spreads directions, sorted by eigenvalue, evenly over groups: bit reversal for powers of two
//     (OSCAR's P_br), its generalisation otherwise.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "method/spectrum.hpp"

namespace oscar {

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
