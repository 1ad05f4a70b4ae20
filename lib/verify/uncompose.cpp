// SPDX-License-Identifier: MIT
#include "verify/uncompose.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace oscar::verify {
namespace {

constexpr std::size_t kPublishedHadamardBlock = 128;

Matrix sylvester(std::size_t dim) {
  Matrix h(dim * dim);
  const double entry = 1 / std::sqrt(static_cast<double>(dim));
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) h[i * dim + j] = (std::popcount(i & j) & 1) != 0 ? -entry : entry;
  }
  return h;
}

std::size_t reversed_bits(std::size_t value, std::size_t dim) {
  std::size_t result = 0;
  for (std::size_t bit = 1; bit < dim; bit <<= 1) result = result << 1 | ((value & bit) != 0 ? 1U : 0U);
  return result;
}

Matrix permutation(std::size_t dim) {
  Matrix p(dim * dim);
  for (std::size_t j = 0; j < dim; ++j) p[(dim - 1 - reversed_bits(j, dim)) * dim + j] = 1.0;
  return p;
}

}  // namespace

const std::vector<std::string>& composition_names() {
  static const std::vector<std::string> names{"plain", "pbr",     "br",      "br_h128", "r_h",
                                              "h_pbr", "h_r_pbr", "h_pbr_r", "r_h_pbr"};
  return names;
}

bool is_constant(const std::string& composition) { return composition == "pbr" || composition == "h_pbr"; }

std::optional<Matrix> eigenvectors_of(std::span<const double> rotation, std::size_t dim,
                                      const std::string& composition) {
  if (composition == "plain") return Matrix(rotation.begin(), rotation.end());
  if (!std::has_single_bit(dim) || is_constant(composition)) return std::nullopt;
  if (composition == "br_h128" && dim != kPublishedHadamardBlock) return std::nullopt;
  const Matrix h = sylvester(dim);  // symmetric: H^T = H
  const Matrix p_transposed = transpose(permutation(dim), dim);
  const auto without_p = [&] { return multiply(rotation, p_transposed, dim); };
  if (composition == "br") return without_p();
  if (composition == "r_h") return multiply(rotation, h, dim);
  if (composition == "br_h128") return multiply(multiply(rotation, h, dim), p_transposed, dim);
  if (composition == "r_h_pbr") return multiply(without_p(), h, dim);
  if (composition == "h_r_pbr") return multiply(h, without_p(), dim);
  if (composition == "h_pbr_r") return multiply(p_transposed, multiply(h, rotation, dim), dim);
  return std::nullopt;
}

std::optional<Matrix> constant_rotation(const std::string& composition, std::size_t dim) {
  if (!std::has_single_bit(dim)) return std::nullopt;
  if (composition == "hadamard") return sylvester(dim);
  if (composition == "pbr") return permutation(dim);
  if (composition == "h_pbr") return multiply(sylvester(dim), permutation(dim), dim);
  return std::nullopt;
}

}  // namespace oscar::verify
