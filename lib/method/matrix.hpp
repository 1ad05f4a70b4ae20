// SPDX-License-Identifier: MIT
// The few dense products that transforms are made of: square, row-major, fp64. Non-goal: speed on anything larger than
// a head dimension.
#pragma once

#include <span>
#include <vector>

#include "method/spectrum.hpp"

namespace oscar {

using Matrix = std::vector<double>;

/// a b.
[[nodiscard]] Matrix multiply(std::span<const double> a, std::span<const double> b, int dim);
[[nodiscard]] Matrix transposed(std::span<const double> a, int dim);
/// U diag(max(values, 1e-12)^power) U^T of a positive semidefinite matrix.
[[nodiscard]] Matrix power_of(const Spectrum& spectrum, double power);
[[nodiscard]] double trace(std::span<const double> a, int dim);

}  // namespace oscar
