// SPDX-License-Identifier: MIT
// What the manifest of a set says of matrices, and of itself, twice. one_truth.hpp compares the files of a set.
#pragma once

#include <string>
#include <vector>

#include "rotation/rotation_set.hpp"

namespace oscar {

/// Returns a clause for each thing that the manifest of `set` says of its matrices and that they do not have: layers
/// that stand once and within the model, numbers of heads, dimensions, and summaries of eigenvalues.
[[nodiscard]] std::vector<std::string> manifest_disagreements(const RotationSet& set);

}  // namespace oscar
