// SPDX-License-Identifier: MIT
// What the objective of a side says of its matrices: "stretch_qqt_r_h_pbr" names what they diagonalise (qqt)
// and how they are composed (r_h_pbr).
#pragma once

#include <string>

#include "verify/structure/subject.hpp"

namespace oscar {

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
[[nodiscard]] bool is_hadamard(const SubjectSide& side, const SideTransform& transform);
/// Whether a layer's matrices are a constant: a Hadamard, or a composition that leaves the eigenvectors out.
[[nodiscard]] bool has_constant_rotation(const SubjectSide& side, const SideTransform& transform);

}  // namespace oscar
