// SPDX-License-Identifier: MIT
#include "verify/structure/uncompose.hpp"

#include "verify/structure/constant_matrices.hpp"

namespace oscar::verify {
namespace {

constexpr std::size_t kPublishedHadamardBlock = 128;

/// X P^T: what stands in column j was in column order[j].
Matrix without_deal(std::span<const double> x, std::size_t dim) {
  const std::vector<std::size_t> order = dealt_order(dim);
  Matrix out(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) out[i * dim + order[j]] = x[i * dim + j];
  }
  return out;
}

/// X H^T and H^T X.
Matrix without_hadamard(std::span<const double> x, std::size_t dim) {
  return multiply(x, transpose(hadamard_matrix(dim), dim), dim);
}
Matrix without_hadamard_before(std::span<const double> x, std::size_t dim) {
  return multiply_transposed(hadamard_matrix(dim), x, dim);
}

Matrix deal_matrix(std::size_t dim) {
  const std::vector<std::size_t> order = dealt_order(dim);
  Matrix p(dim * dim);
  for (std::size_t j = 0; j < dim; ++j) p[order[j] * dim + j] = 1.0;
  return p;
}

}  // namespace

bool is_constant(const std::string& composition) { return composition == "pbr" || composition == "h_pbr"; }

std::optional<Matrix> eigenvectors_of(std::span<const double> rotation, std::size_t dim,
                                      const std::string& composition) {
  if (composition == "plain") return Matrix(rotation.begin(), rotation.end());
  if (dim == 0 || is_constant(composition)) return std::nullopt;
  if (composition == "br_h128" && dim != kPublishedHadamardBlock) return std::nullopt;
  if (composition == "br") return without_deal(rotation, dim);
  if (composition == "r_h") return without_hadamard(rotation, dim);
  if (composition == "br_h128") return without_deal(without_hadamard(rotation, dim), dim);
  if (composition == "r_h_pbr") return without_hadamard(without_deal(rotation, dim), dim);
  if (composition == "h_r_pbr") return without_hadamard_before(without_deal(rotation, dim), dim);
  if (composition == "h_pbr_r")
    return multiply_transposed(deal_matrix(dim), without_hadamard_before(rotation, dim), dim);
  return std::nullopt;
}

std::optional<Matrix> constant_rotation(const std::string& composition, std::size_t dim) {
  if (dim == 0) return std::nullopt;
  if (composition == "hadamard") return hadamard_matrix(dim);
  if (composition == "pbr") return deal_matrix(dim);
  if (composition == "h_pbr") return multiply(hadamard_matrix(dim), deal_matrix(dim), dim);
  return std::nullopt;
}

}  // namespace oscar::verify
