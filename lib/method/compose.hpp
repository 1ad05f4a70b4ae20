// SPDX-License-Identifier: MIT
// From spectra to rotations. R below is the eigenvector matrix U, H the Hadamard matrix, P the deal permutation; a name
// lists factors from left to right, as in the published fitter (rotation/compute_kv_rotation.py of OSCAR).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "method/spectrum.hpp"

namespace oscar {

enum class Composition { kPlain, kPbr, kBr, kBrH128, kRH, kHPbr, kHRPbr, kHPbrR, kRHPbr };

/// "plain" R, "pbr" P, "br" RP, "br_h128" RPH, "r_h" RH, "h_pbr" HP, "h_r_pbr" HRP, "h_pbr_r" HPR, "r_h_pbr" RHP.
[[nodiscard]] std::string_view name_of(Composition composition);
/// Throws UsageError that lists the names.
[[nodiscard]] Composition composition_from_name(std::string_view name);

/// One orthogonal matrix (dim, dim) per spectrum: rotated = native * rotation.
[[nodiscard]] MatrixStack compose(const std::vector<Spectrum>& spectra, Composition composition);

/// The "uresidual" rotation: R = U_E Pi U_C^T, where Pi sends the eigenvector of the covariance C with the largest
/// eigenvalue to that of the residual moment E with the smallest, and so on.
[[nodiscard]] MatrixStack residual_rotation(const std::vector<Spectrum>& residual,
                                            const std::vector<Spectrum>& covariance);

/// H itself ("hadamard", data-free).
[[nodiscard]] MatrixStack hadamard_rotation(int dim);

}  // namespace oscar
