// SPDX-License-Identifier: MIT
// The few dense products that checks need, row-major fp64 (dim, dim). Of the code that it checks the checker shares
// nothing but the BLAS. And what the objective of a side says of its matrices: "stretch_qqt_r_h_pbr" names what they
// diagonalise (qqt) and how they are composed (r_h_pbr). Compositions of eigenvectors U, with H and P as objective.cpp
// defines them:
//   plain U   br UP   br_h128 UPH   r_h UH   r_h_pbr UHP   h_r_pbr HUP   h_pbr_r HPU   pbr P   h_pbr HP (no U inside)
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/products.hpp"
#include "set/set.hpp"

namespace oscar::verify {

using Matrix = std::vector<double>;

/// a b
[[nodiscard]] inline Matrix multiply(std::span<const double> a, std::span<const double> b, std::size_t dim) {
  Matrix out(dim * dim);
  square_product(a, false, b, dim, out);
  return out;
}

/// a^T b
[[nodiscard]] inline Matrix multiply_transposed(std::span<const double> a, std::span<const double> b, std::size_t dim) {
  Matrix out(dim * dim);
  square_product(a, true, b, dim, out);
  return out;
}

[[nodiscard]] inline Matrix transpose(std::span<const double> a, std::size_t dim) {
  Matrix out(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) out[j * dim + i] = a[i * dim + j];
  }
  return out;
}

/// sqrt(sum x^2)
[[nodiscard]] inline double frobenius(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x * x;
  return std::sqrt(sum);
}

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
