// SPDX-License-Identifier: MIT
// Takes a rotation apart: the eigenvectors U inside R, by the name of the composition, with H and P as uncompose.cpp
// defines them:
//   plain U   br UP   br_h128 UPH   r_h UH   r_h_pbr UHP   h_r_pbr HUP   h_pbr_r HPU   pbr P   h_pbr HP (no U inside)
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verify/structure/matrix.hpp"

namespace oscar::verify {

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
