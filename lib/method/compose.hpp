// SPDX-License-Identifier: MIT
// From spectra to rotations, as the published fitter composes them (rotation/compute_kv_rotation.py of OSCAR): "plain"
// is the eigenvector matrix U, "r_h_pbr" U H P with H the Hadamard matrix and P the deal permutation (bases.hpp).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "method/spectrum.hpp"

namespace oscar {

enum class Composition { kPlain, kRHPbr };

[[nodiscard]] std::string_view name_of(Composition composition);
/// Throws UsageError that lists the names.
[[nodiscard]] Composition composition_from_name(const std::string& name);

/// One orthogonal matrix (dim, dim) per spectrum: rotated = native * rotation.
[[nodiscard]] MatrixStack compose(const std::vector<Spectrum>& spectra, Composition composition);

/// H itself ("hadamard", data-free).
[[nodiscard]] MatrixStack hadamard_rotation(int dim);

}  // namespace oscar
