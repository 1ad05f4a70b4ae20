// SPDX-License-Identifier: MIT
// A stretch T of keys belongs to the metric M = (T T^T)^(1 / power), which is the geometric mean of A^-1 and B, the
// covariances of keys and queries as the fit regularises them: exactly then M A M = B. No eigenproblem is needed to see
// that, nor any code of the fit.
#pragma once

#include <optional>
#include <span>

#include "verify/structure/matrix.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {

/// Written with a matrix, read with another, and not a rotation.
[[nodiscard]] bool is_stretch(const SideTransform& side);

/// What the fit recorded of a stretch; none if it did not.
struct StretchRecord {
  double power = 1, lambda = 0, condition = 1;
};
[[nodiscard]] std::optional<StretchRecord> stretch_record(const SideTransform& side);

/// C / mean eigenvalue + lambda I.
[[nodiscard]] Matrix regularised(std::span<const double> covariance, double lambda, std::size_t dim);

/// |M A M - B| / |B|. none: for powers other than 1 and 1/2.
[[nodiscard]] std::optional<double> metric_error(std::span<const double> write, std::span<const double> a,
                                                 std::span<const double> b, double power, std::size_t dim);

/// What the columns of a side diagonalise: its covariance, of a stretch as the fit regularises it.
[[nodiscard]] MatrixStack diagonalised_covariance(const SideTransform& side);

}  // namespace oscar::verify
