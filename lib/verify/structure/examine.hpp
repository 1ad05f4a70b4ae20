// SPDX-License-Identifier: MIT
// Holds the matrices of a layer against what they should diagonalise, and names what would explain a matrix that does
// not: transposed, composed in another way, of the other side, of another layer.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "kernels/types.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {

/// What a side of a layer diagonalises, by the set itself or by data; count 0: not known.
using Covariances = std::function<MatrixStack(const SubjectSide&, int layer, const SideTransform&)>;

/// What was found of a whole stack: the largest error of its matrices, and in words what is wrong with the first above
/// the limit.
struct Finding {
  double error = 0;
  std::string message;
};
/// exact: with the eigenvalues |U^T Sigma U - Lambda| / |Lambda|; else the disorder of the directions (checks.hpp).
/// nullopt: the composition cannot be taken apart.
[[nodiscard]] std::optional<Finding> examine(const Subject& subject, const Covariances& covariances,
                                             const SubjectSide& side, int layer, const SideTransform& t, bool exact,
                                             double limit);

}  // namespace oscar::verify
