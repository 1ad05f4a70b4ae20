// SPDX-License-Identifier: MIT
// Is the rotation made of the eigenvectors of the covariance it claims? With R = compose(U): U^T Sigma U =
// diag(eigenvalues). A swapped, transposed, stale or differently composed matrix fails.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <span>

#include "set/names.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/subject.hpp"

namespace oscar::verify {
namespace {

/// What a side of a layer diagonalises, by the set itself or by data; count 0: not known.
using Covariances = std::function<MatrixStack(const RotationSide&, int layer, const SideTransform&)>;

/// What was found of a whole stack: the largest error of its matrices, and in words what is wrong with the first above
/// the limit.
struct Finding {
  double error = 0;
  std::string message;
};

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
  const RotationSide& side;
  int layer;
  const MatrixStack& rotation;
  int index;
  Matrix covariance;
  std::span<const double> values;
};

/// First the matrix as it claims to be, then other readings: transposed, of the other side, of another layer.
std::vector<Suspect> readings(const RotationSides& sides, const Covariances& covariances, const Claim& claim) {
  const std::string composition = composition_name(claim.side.objective);
  const auto dim = static_cast<std::size_t>(claim.rotation.dim);
  const auto stored = claim.rotation[claim.index];
  const Matrix matrix(stored.begin(), stored.end());
  std::vector<Suspect> suspects{
      {"", matrix, claim.covariance, composition, claim.values},
      {"the matrix is transposed", transpose(matrix, dim), claim.covariance, composition, claim.values}};
  for (const RotationSide& other : sides) {
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

/// exact: with the eigenvalues |U^T Sigma U - Lambda| / |Lambda|; else the disorder of the directions (subject.hpp).
/// nullopt: the composition cannot be taken apart.
std::optional<Finding> examine(const RotationSides& sides, const Covariances& covariances, const RotationSide& side,
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
        explanation(readings(sides, covariances, {side, layer, t.rotation, m, sigma, values}), dim, limit);
  }
  return finding;
}

// A stretch T of keys belongs to the metric M = (T T^T)^(1 / power), which is the geometric mean of A^-1 and B, the
// covariances of keys and queries as the fit regularises them: exactly then M A M = B. No eigenproblem is needed to see
// that, nor any code of the fit.

/// What the fit recorded of a stretch; none if it did not.
struct StretchRecord {
  double power = 1, lambda = 0, condition = 1;
};

/// Written with a matrix, read with another, and not a rotation.
bool is_stretch(const SideTransform& side) { return side.read_rotation.count > 0; }

std::optional<StretchRecord> stretch_record(const SideTransform& side) {
  const Json &record = member(side.scores, "stretch"), &power = member(record, "power"),
             &lambda = member(record, "lambda"), &conditions = member(record, "condition");
  const auto is_number = [](const Json& json) { return json.is_number(); };
  if (!is_number(power) || !is_number(lambda) || !conditions.is_array() || conditions.empty() ||
      !std::ranges::all_of(conditions, is_number)) {
    return std::nullopt;
  }
  return StretchRecord{power, lambda, std::ranges::max(conditions.get<std::vector<double>>())};
}

/// C / mean eigenvalue + lambda I.
Matrix regularised(std::span<const double> covariance, double lambda, std::size_t dim) {
  double mean = 0;
  for (std::size_t i = 0; i < dim; ++i) mean += covariance[i * dim + i] / static_cast<double>(dim);
  Matrix out(covariance.begin(), covariance.end());
  for (double& x : out) x /= mean;
  for (std::size_t i = 0; i < dim; ++i) out[i * dim + i] += lambda;
  return out;
}

/// |M A M - B| / |B|. none: for powers other than 1 and 1/2.
std::optional<double> metric_error(std::span<const double> write, std::span<const double> a, std::span<const double> b,
                                   double power, std::size_t dim) {
  if (power != 1 && power != 0.5) return std::nullopt;
  Matrix metric = multiply(write, transpose(write, dim), dim);
  if (power == 0.5) metric = multiply(metric, metric, dim);
  const Matrix product = multiply(multiply(metric, a, dim), metric, dim);
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < product.size(); ++i) {
    error += (product[i] - b[i]) * (product[i] - b[i]);
    norm += b[i] * b[i];
  }
  const double relative = std::sqrt(error / norm);
  return std::isnan(relative) ? INFINITY : relative;
}

/// What the columns of a side diagonalise: its covariance, of a stretch as the fit regularises it.
MatrixStack diagonalised_covariance(const SideTransform& side) {
  MatrixStack covariance = side.covariance;
  const auto record = stretch_record(side);
  if (!is_stretch(side) || !record) return covariance;
  for (int m = 0; m < covariance.count; ++m) {
    const Matrix a = regularised(covariance[m], record->lambda, static_cast<std::size_t>(covariance.dim));
    std::copy(a.begin(), a.end(), covariance[m].begin());
  }
  return covariance;
}

/// Where the fit bounds the ratio of singular values, the metric is no geometric mean any more.
constexpr double kBoundedCondition = 999;

/// The largest error of the stack if it were written with `write`, against the covariances of `other`.
double stretch_error(const MatrixStack& write, const SideTransform& other, const StretchRecord& record) {
  const auto dim = static_cast<std::size_t>(write.dim);
  double worst = 0;
  for (int m = 0; m < write.count; ++m) {
    const auto error = metric_error(write[m], regularised(other.covariance[m], record.lambda, dim),
                                    regularised(other.query_covariance[m], record.lambda, dim), record.power, dim);
    worst = std::max(worst, error.value_or(INFINITY));
  }
  return worst;
}

bool comparable(const SideTransform& a, const SideTransform& b) {
  return b.covariance.data.size() == a.rotation.data.size() && b.query_covariance.data.size() == a.rotation.data.size();
}

std::string stretch_explanation(const RotationSide& side, int layer, const SideTransform& t,
                                const StretchRecord& record) {
  if (stretch_error(t.rotation.transposed(), t, record) <= kStretchLimit) return "the matrices are transposed";
  if (stretch_error(t.read_rotation, t, record) <= kStretchLimit)
    return "the matrices of keys and queries are exchanged";
  for (const auto& [id, other] : side.layers) {
    if (id == layer || !is_stretch(other) || !comparable(t, other)) continue;
    if (stretch_error(t.rotation, other, record) <= kStretchLimit)
      return "it is the stretch of layer " + std::to_string(id);
  }
  return "it does not belong to this layer, model or data";
}

/// Why nothing can be said; empty if something can.
std::string obstacle(const SideTransform& t, const std::optional<StretchRecord>& record) {
  if (!record || !comparable(t, t)) return "the set carries no covariances of keys and queries: fit it again";
  if (record->condition >= kBoundedCondition) return "the stretch is bounded, so that no covariance explains it";
  return record->power == 1 || record->power == 0.5 ? "" : "only powers 1 and 0.5 can be checked";
}

const SideTransform* find_layer(const RotationSide& side, int layer) {
  const auto found = std::ranges::find(side.layers, layer, &LayerSide::layer_id);
  return found == side.layers.end() ? nullptr : &found->transform;
}

void check_constant(const RotationSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
  const std::string name = is_hadamard(side.objective, t) ? "hadamard" : composition_name(side.objective);
  const auto expected = constant_rotation(name, static_cast<std::size_t>(t.rotation.dim));
  if (!expected) {
    out.push_back({"composition", layer, side.target, {}, kConstantLimit, {}, "no known constant for this head_dim"});
    return;
  }
  double worst = 0;
  for (int m = 0; m < t.rotation.count; ++m) {
    for (std::size_t i = 0; i < expected->size(); ++i)
      worst = std::max(worst, std::abs(t.rotation[m][i] - (*expected)[i]));
  }
  out.push_back(at_most(kConstantLimit, worst, "composition", layer, side.target, "this is not \"" + name + "\""));
}

Check unknown(const std::string& name, int layer, const RotationSide& side, const std::string& message) {
  return {name, layer, side.target, {}, {}, {}, message};
}

constexpr const char* kNoCovariance = "the set carries no covariance: give --dump, --stats or --model";

/// Data has told what the set alone could not.
void forget_unknown(std::vector<Check>& checks, int layer, const RotationSide& side) {
  std::erase_if(checks, [&](const Check& check) {
    return check.name == "decomposition" && check.message == kNoCovariance && check.layer == layer &&
           check.target == side.target;
  });
}

std::optional<Moment> moment_of(const RotationSide& side) { return find_moment(objective_name(side.objective)); }

bool usable(const SideTransform& t, const MatrixStack& covariance) {
  return covariance.dim == t.rotation.dim && covariance.count > 0 &&
         t.eigenvalues.size() == static_cast<std::size_t>(t.rotation.count) * t.rotation.dim;
}

}  // namespace

void check_stretch(const RotationSides& sides, std::vector<Check>& checks) {
  for_each_side(sides, checks,
                [](const RotationSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
                  if (!is_stretch(t)) return;
                  const auto record = stretch_record(t);
                  const std::string reason = obstacle(t, record);
                  if (!reason.empty()) {
                    out.push_back({"stretch_metric", layer, side.target, {}, kStretchLimit, {}, reason});
                    return;
                  }
                  const double error = stretch_error(t.rotation, t, *record);
                  const std::string why = error <= kStretchLimit ? "" : stretch_explanation(side, layer, t, *record);
                  out.push_back(at_most(kStretchLimit, error, "stretch_metric", layer, side.target, why));
                });
}

void check_decomposition(const RotationSides& sides, std::vector<Check>& checks) {
  const auto stored = [](const RotationSide&, int, const SideTransform& t) { return diagonalised_covariance(t); };
  for_each_side(
      sides, checks, [&](const RotationSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
        if (has_constant_rotation(side.objective, t)) return check_constant(side, layer, t, out);
        if (!usable(t, t.covariance) || (is_stretch(t) && !stretch_record(t))) {
          out.push_back(unknown("decomposition", layer, side, kNoCovariance));
          return;
        }
        const auto finding = examine(sides, stored, side, layer, t, true, kDecompositionLimit);
        if (!finding) {
          out.push_back(unknown("decomposition", layer, side, "\"" + side.objective + "\" cannot be taken apart"));
          return;
        }
        out.push_back(
            at_most(kDecompositionLimit, finding->error, "decomposition", layer, side.target, finding->message));
      });
}

void check_decomposition_on_data(const RotationSides& sides, const std::vector<DataCovariance>& data,
                                 std::vector<Check>& checks) {
  // Other readings are judged on the data, too.
  const auto of_data = [&](const RotationSide& side, int layer, const SideTransform&) {
    const auto found = std::find_if(data.rbegin(), data.rend(), [&](const DataCovariance& d) {
      return d.layer_id == layer && d.moment == moment_of(side);
    });
    return found == data.rend() ? MatrixStack() : found->covariance;
  };
  for (const DataCovariance& d : data) {
    for (const RotationSide& side : sides) {
      const SideTransform* t = find_layer(side, d.layer_id);
      if (t == nullptr || side.target.empty() || moment_of(side) != d.moment ||
          has_constant_rotation(side.objective, *t) || !usable(*t, d.covariance))
        continue;
      if (is_stretch(*t)) continue;  // it diagonalises what is stored, not a covariance of the data
      const double limit = d.same_tokens ? kSameTokensLimit : kDisorderLimit;
      const auto finding = examine(sides, of_data, side, d.layer_id, *t, d.same_tokens, limit);
      if (!finding) {
        checks.push_back(
            unknown("decomposition_on_data", d.layer_id, side, "\"" + side.objective + "\" cannot be taken apart"));
        continue;
      }
      std::optional<bool> ok = finding->error <= limit;
      std::string message = finding->message;
      if (!*ok && !d.same_tokens && d.tokens < std::int64_t{kMinTokensPerDim} * t->rotation.dim) {
        ok = std::nullopt;
        message = "too few tokens to tell: give at least " + std::to_string(kMinTokensPerDim * t->rotation.dim);
      }
      if (ok) forget_unknown(checks, d.layer_id, side);
      checks.push_back({"decomposition_on_data", d.layer_id, side.target, finding->error, limit, ok, message});
    }
  }
}

}  // namespace oscar::verify
