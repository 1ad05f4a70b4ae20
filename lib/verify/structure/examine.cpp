// SPDX-License-Identifier: MIT
#include "verify/structure/examine.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "rotation/names.hpp"
#include "verify/structure/matrix.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/uncompose.hpp"

namespace oscar::verify {
namespace {

/// |off-diagonal part of U^T Sigma U| / |Sigma|.
double off_diagonal(std::span<const double> u, std::span<const double> sigma, std::size_t dim) {
  Matrix m = multiply_transposed(u, multiply(sigma, u, dim), dim);
  for (std::size_t i = 0; i < dim; ++i) m[i * dim + i] = 0;
  return frobenius(m) / frobenius(sigma);
}

/// 1 - Spearman's rank correlation of diag(U^T Sigma U) with its index: 0 if the directions keep their order on other
/// data.
double disorder(std::span<const double> u, std::span<const double> sigma, std::size_t dim) {
  const Matrix m = multiply_transposed(u, multiply(sigma, u, dim), dim);
  std::vector<std::size_t> order(dim);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return m[a * dim + a] < m[b * dim + b]; });
  double sum = 0;
  for (std::size_t rank = 0; rank < dim; ++rank) {
    const double difference = static_cast<double>(rank) - static_cast<double>(order[rank]);
    sum += difference * difference;
  }
  const auto n = static_cast<double>(dim);
  return dim < 2 ? 0 : 6 * sum / (n * (n * n - 1));
}

/// |U^T Sigma U - Lambda| / |Lambda|.
double decomposition_error(std::span<const double> u, std::span<const double> sigma, std::span<const double> values,
                           std::size_t dim) {
  Matrix m = multiply_transposed(u, multiply(sigma, u, dim), dim);
  for (std::size_t i = 0; i < dim; ++i) m[i * dim + i] -= values[i];
  return frobenius(m) / frobenius(values);
}

/// One covariance for one rotation of the stack: its head's, or the mean over heads.
Matrix covariance_for(const MatrixStack& covariance, const MatrixStack& rotation, int m) {
  if (covariance.count == rotation.count) return {covariance[m].begin(), covariance[m].end()};
  Matrix mean(static_cast<std::size_t>(covariance.dim) * covariance.dim);
  for (int h = 0; h < covariance.count; ++h) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += covariance[h][i] / covariance.count;
  }
  return mean;
}

/// Another reading of the same matrix.
struct Suspect {
  std::string explanation;
  Matrix rotation, covariance;
  std::string composition;
  std::span<const double> values;  // of that covariance; empty: not to be compared
};

/// What is measured for one matrix: with eigenvalues, against them; without, only whether the covariance becomes
/// diagonal.
double error_of(std::span<const double> u, std::span<const double> sigma, std::span<const double> values,
                std::size_t dim) {
  return values.empty() ? disorder(u, sigma, dim) : decomposition_error(u, sigma, values, dim);
}

/// Names the reading under which the matrix would be right. suspects[0] is the matrix as it claims to be.
std::string explanation(std::vector<Suspect> suspects, std::size_t dim, double limit) {
  const Suspect claimed = suspects.front();
  for (const std::string& other : composition_names()) {
    if (other == claimed.composition) continue;
    suspects.push_back({"it is composed as \"" + other + "\", not as \"" + claimed.composition + "\"", claimed.rotation,
                        claimed.covariance, other, claimed.values});
  }
  std::string best;
  double lowest = limit;
  for (std::size_t i = 1; i < suspects.size(); ++i) {
    const auto u = eigenvectors_of(suspects[i].rotation, dim, suspects[i].composition);
    if (!u) continue;
    const double error = error_of(*u, suspects[i].covariance, suspects[i].values, dim);
    if (error >= lowest) continue;
    lowest = error;
    best = suspects[i].explanation;
  }
  if (!best.empty()) return best;
  const auto u = eigenvectors_of(claimed.rotation, dim, claimed.composition);
  if (u && !claimed.values.empty() && off_diagonal(*u, claimed.covariance, dim) <= limit)
    return "the eigenvalues are not those of the covariance";
  return "it does not belong to this layer, side, model or data";
}

/// One matrix of a stack, with what it is held against.
struct Claim {
  const SubjectSide& side;
  int layer;
  const MatrixStack& rotation;
  int index;
  Matrix covariance;
  std::span<const double> values;
};

/// First the matrix as it claims to be, then other readings: transposed, of the other side, of another layer.
std::vector<Suspect> readings(const Subject& subject, const Covariances& covariances, const Claim& claim) {
  const std::string composition = composition_name(claim.side.objective);
  const auto dim = static_cast<std::size_t>(claim.rotation.dim);
  const auto stored = claim.rotation[claim.index];
  const Matrix matrix(stored.begin(), stored.end());
  std::vector<Suspect> suspects{
      {"", matrix, claim.covariance, composition, claim.values},
      {"the matrix is transposed", transpose(matrix, dim), claim.covariance, composition, claim.values}};
  for (const SubjectSide& other : subject.sides) {
    const bool same_side = other.target == claim.side.target;
    for (const auto& [id, transform] : other.layers) {
      if (same_side == (id == claim.layer)) continue;
      const MatrixStack covariance = covariances(other, id, transform);
      if (covariance.dim != claim.rotation.dim) continue;
      const std::string of =
          same_side ? "of layer " + std::to_string(id) : "of the other side: keys and values are swapped";
      const bool compare_values = !claim.values.empty() && transform.eigenvalues.size() >= dim;
      suspects.push_back({"it is the matrix " + of, matrix, covariance_for(covariance, claim.rotation, claim.index),
                          composition_name(other.objective),
                          std::span(transform.eigenvalues).first(compare_values ? dim : 0)});
    }
  }
  return suspects;
}

}  // namespace

std::optional<Finding> examine(const Subject& subject, const Covariances& covariances, const SubjectSide& side,
                               int layer, const SideTransform& t, bool exact, double limit) {
  const MatrixStack covariance = covariances(side, layer, t);
  const auto dim = static_cast<std::size_t>(t.rotation.dim);
  const std::string composition = composition_name(side.objective);
  Finding finding;
  for (int m = 0; m < t.rotation.count; ++m) {
    const auto u = eigenvectors_of(t.rotation[m], dim, composition);
    if (!u) return std::nullopt;
    const Matrix sigma = covariance_for(covariance, t.rotation, m);
    const auto values = std::span(t.eigenvalues).subspan(static_cast<std::size_t>(m) * dim, exact ? dim : 0);
    const double error = error_of(*u, sigma, values, dim);
    finding.error = std::max(finding.error, std::isnan(error) ? INFINITY : error);
    if (error <= limit || !finding.message.empty()) continue;
    finding.message =
        explanation(readings(subject, covariances, {side, layer, t.rotation, m, sigma, values}), dim, limit);
  }
  return finding;
}

}  // namespace oscar::verify
