// SPDX-License-Identifier: MIT
// What the objective of a side says of its matrices: "stretch_qqt_r_h_pbr" names what they diagonalise (qqt)
// and how they are composed (r_h_pbr).
// Compositions of eigenvectors U, with H and P as objective.cpp defines them:
//   plain U   br UP   br_h128 UPH   r_h UH   r_h_pbr UHP   h_r_pbr HUP   h_pbr_r HPU   pbr P   h_pbr HP (no U inside)
#pragma once

#include <optional>
#include <span>
#include <string>

#include "set/rotation_part.hpp"
#include "verify/structure/matrix.hpp"

namespace oscar::verify {

/// Returns what is diagonalised: "qqt" of "qqt_r_h_pbr" and "stretch_qqt_r_h_pbr".
[[nodiscard]] std::string objective_name(const std::string& objective);
/// Returns how matrices are composed: "r_h_pbr" of "qqt_r_h_pbr"; empty for "hadamard" and "uresidual".
[[nodiscard]] std::string composition_name(const std::string& objective);
/// Whether an objective is of keys only.
[[nodiscard]] bool fits_keys(const std::string& objective);
/// Whether an objective is of values only.
[[nodiscard]] bool fits_values(const std::string& objective);

/// Whether a layer's matrices are a plain Hadamard: by the objective, or as a layer of a mixture that no data went
/// into.
[[nodiscard]] bool is_hadamard(const std::string& objective, const SideTransform& transform);
/// Whether a layer's matrices are a constant: a Hadamard, or a composition that leaves the eigenvectors out.
[[nodiscard]] bool has_constant_rotation(const std::string& objective, const SideTransform& transform);

/// True for compositions without U: the rotation is a constant.
[[nodiscard]] bool is_constant(const std::string& composition);

/// U (columns in the order of ascending eigenvalues); nullopt if the composition is not known, holds no U, or is not
/// defined for this dimension.
[[nodiscard]] std::optional<Matrix> eigenvectors_of(std::span<const double> rotation, std::size_t dim,
                                                    const std::string& composition);
/// The rotation that a constant composition, or the objective "hadamard", must have; nullopt if it is neither or
/// unknown.
[[nodiscard]] std::optional<Matrix> constant_rotation(const std::string& composition, std::size_t dim);

}  // namespace oscar::verify
