// SPDX-License-Identifier: MIT
#include "verify/structure/objective.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace oscar::verify {
namespace {

/// "qqt_r_h_pbr" of "stretch_qqt_r_h_pbr".
std::string without_prefix(std::string objective) {
  const std::string prefix = "stretch_";
  if (objective.starts_with(prefix)) objective.erase(0, prefix.size());
  return objective;
}

// H and P, the parts of a rotation that no data goes into, for any head dimension d. Verify's own, from their
// definitions:
//   H = base (x) Sylvester / sqrt(d) for d = 1, 12, 20 or 28 times a power of two, with Paley's matrices of these
//       orders as base; for other d, as many blocks of the largest Sylvester matrix whose order divides d
//   P = I[:, order]: with g the largest power of two that divides d, the i-th smallest direction goes to place i / g of
//       group bitrev(i mod g), and order counts from the largest

/// Legendre's symbol (a / q), q an odd prime.
int legendre(std::size_t a, std::size_t q) {
  a %= q;
  for (std::size_t x = 1; x < q; ++x) {
    if (x * x % q == a) return 1;
  }
  return a == 0 ? 0 : -1;
}

/// Entry of Jacobsthal's matrix of q with a border of ones, -1 below the corner if q = 3 mod 4; zero diagonal.
int conference_entry(std::size_t i, std::size_t j, std::size_t q) {
  if (i == 0 || j == 0) return i == j ? 0 : (j == 0 && q % 4 == 3 ? -1 : 1);
  return legendre(i + q - j, q);
}

/// Paley's first construction, C + I of order q + 1, for q = 3 mod 4.
int paley_first(std::size_t i, std::size_t j, std::size_t q) { return conference_entry(i, j, q) + (i == j ? 1 : 0); }

/// His second, of order 2 (q + 1) for q = 1 mod 4: C (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1].
int paley_second(std::size_t i, std::size_t j, std::size_t q) {
  const bool lower = i % 2 == 1, right = j % 2 == 1;
  if (i / 2 == j / 2) return lower || right ? -1 : 1;
  return conference_entry(i / 2, j / 2, q) * (lower && right ? -1 : 1);
}

int base_entry(std::size_t i, std::size_t j, std::size_t base) {
  if (base == 12) return paley_first(i, j, 11);
  if (base == 20) return paley_first(i, j, 19);
  return base == 28 ? paley_second(i, j, 13) : 1;
}

int sylvester_entry(std::size_t i, std::size_t j) { return (std::popcount(i & j) & 1) != 0 ? -1 : 1; }

/// dim = base * 2^k; 0 if no known matrix is of such an order.
std::size_t base_of(std::size_t dim) {
  for (const std::size_t base : {1U, 12U, 20U, 28U}) {
    if (dim % base == 0 && std::has_single_bit(dim / base)) return base;
  }
  return 0;
}

std::size_t largest_power_of_two(std::size_t dim) { return std::size_t{1} << std::countr_zero(dim); }

/// (dim, dim); H H^T = I. dim > 0.
Matrix hadamard_matrix(std::size_t dim) {
  const std::size_t base = base_of(dim);
  const std::size_t block = base > 0 ? dim / base : largest_power_of_two(dim);
  const double scale = 1 / std::sqrt(static_cast<double>(base > 0 ? dim : block));
  Matrix h(dim * dim);
  for (std::size_t i = 0; i < dim; ++i) {
    for (std::size_t j = 0; j < dim; ++j) {
      const int outer = base > 0 ? base_entry(i / block, j / block, base) : (i / block == j / block ? 1 : 0);
      h[i * dim + j] = scale * outer * sylvester_entry(i % block, j % block);
    }
  }
  return h;
}

/// (A P)[:, j] = A[:, order[j]]. dim > 0.
std::vector<std::size_t> dealt_order(std::size_t dim) {
  const std::size_t groups = largest_power_of_two(dim);
  std::vector<std::size_t> order(dim);
  for (std::size_t i = 0; i < dim; ++i) {
    std::size_t group = 0;
    for (std::size_t bit = 1; bit < groups; bit <<= 1) group = group << 1 | ((i & bit) != 0 ? 1U : 0U);
    order[group * (dim / groups) + i / groups] = dim - 1 - i;
  }
  return order;
}

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

std::string objective_name(const std::string& objective) {
  const std::string name = without_prefix(objective);
  return name.substr(0, name.find('_'));
}

std::string composition_name(const std::string& objective) {
  const std::string name = without_prefix(objective);
  const std::size_t underscore = name.find('_');
  return underscore == std::string::npos ? "" : name.substr(underscore + 1);
}

bool is_hadamard(const std::string& objective, const SideTransform& transform) {
  const auto& values = transform.eigenvalues;
  const bool data_free = transform.covariance.count == 0 && !values.empty() &&
                         std::all_of(values.begin(), values.end(), [](double x) { return x == 1; });
  return objective == "hadamard" || (objective.starts_with("mixed_") && data_free);
}

bool has_constant_rotation(const std::string& objective, const SideTransform& transform) {
  return is_hadamard(objective, transform) || is_constant(composition_name(objective));
}

bool fits_keys(const std::string& objective) {
  const std::string name = objective_name(objective);
  return name == "qqt" || name == "ktk" || name == "fisher";
}

bool fits_values(const std::string& objective) {
  const std::string name = objective_name(objective);
  return name == "sst" || name == "vtv";
}

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
