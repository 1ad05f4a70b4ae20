// SPDX-License-Identifier: MIT
// Is the rotation made of the eigenvectors of the covariance it claims? With R = compose(U): U^T Sigma U =
// diag(eigenvalues). A swapped, transposed, stale or differently composed matrix fails.
#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "verify/structure/checks.hpp"
#include "verify/structure/examine.hpp"
#include "verify/structure/for_each_side.hpp"
#include "verify/structure/matrix.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/subject.hpp"
#include "verify/structure/uncompose.hpp"

namespace oscar::verify {
namespace {

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
  const Json record = side.scores.value("stretch", Json::object());
  if (!record.contains("power") || !record.contains("lambda") || !record.contains("condition")) return std::nullopt;
  const auto conditions = record["condition"].get<std::vector<double>>();
  if (conditions.empty()) return std::nullopt;
  return StretchRecord{record["power"], record["lambda"], *std::max_element(conditions.begin(), conditions.end())};
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
double error_of(const MatrixStack& write, const SideTransform& other, const StretchRecord& record) {
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

MatrixStack transposed(MatrixStack stack) {
  const auto dim = static_cast<std::size_t>(stack.dim);
  for (int m = 0; m < stack.count; ++m) {
    const Matrix out = transpose(stack[m], dim);
    std::copy(out.begin(), out.end(), stack[m].begin());
  }
  return stack;
}

std::string explanation(const SubjectSide& side, int layer, const SideTransform& t, const StretchRecord& record) {
  if (error_of(transposed(t.rotation), t, record) <= kStretchLimit) return "the matrices are transposed";
  if (error_of(t.read_rotation, t, record) <= kStretchLimit) return "the matrices of keys and queries are exchanged";
  for (const auto& [id, other] : side.layers) {
    if (id == layer || !is_stretch(other) || !comparable(t, other)) continue;
    if (error_of(t.rotation, other, record) <= kStretchLimit) return "it is the stretch of layer " + std::to_string(id);
  }
  return "it does not belong to this layer, model or data";
}

/// Why nothing can be said; empty if something can.
std::string obstacle(const SideTransform& t, const std::optional<StretchRecord>& record) {
  if (!record || !comparable(t, t)) return "the set carries no covariances of keys and queries: fit it again";
  if (record->condition >= kBoundedCondition) return "the stretch is bounded, so that no covariance explains it";
  return record->power == 1 || record->power == 0.5 ? "" : "only powers 1 and 0.5 can be checked";
}

const SideTransform* find_layer(const SubjectSide& side, int layer) {
  for (const auto& [id, transform] : side.layers) {
    if (id == layer) return &transform;
  }
  return nullptr;
}

void check_constant(const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
  const std::string name = is_hadamard(side, t) ? "hadamard" : composition_name(side.objective);
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
  const bool ok = worst <= kConstantLimit;
  out.push_back(
      {"composition", layer, side.target, worst, kConstantLimit, ok, ok ? "" : "this is not \"" + name + "\""});
}

Check unknown(const std::string& name, int layer, const SubjectSide& side, const std::string& message) {
  return {name, layer, side.target, {}, {}, {}, message};
}

constexpr const char* kNoCovariance = "the set carries no covariance: give --dump, --stats or --model";

/// Data has told what the set alone could not.
void forget_unknown(std::vector<Check>& checks, const DataCovariance& data) {
  std::erase_if(checks, [&](const Check& check) {
    return check.name == "decomposition" && check.message == kNoCovariance && check.layer == data.layer_id &&
           check.target == data.target;
  });
}

bool usable(const SideTransform& t, const MatrixStack& covariance) {
  const bool sizes = covariance.dim == t.rotation.dim && covariance.count > 0 &&
                     t.eigenvalues.size() == static_cast<std::size_t>(t.rotation.count) * t.rotation.dim;
  return sizes && frobenius(covariance.data) > 0;
}

}  // namespace

void check_stretch(const Subject& subject, std::vector<Check>& checks) {
  for_each_side(subject, checks,
                [](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
                  if (!is_stretch(t)) return;
                  const auto record = stretch_record(t);
                  const std::string reason = obstacle(t, record);
                  if (!reason.empty()) {
                    out.push_back({"stretch_metric", layer, side.target, {}, kStretchLimit, {}, reason});
                    return;
                  }
                  const double error = error_of(t.rotation, t, *record);
                  const bool ok = error <= kStretchLimit;
                  out.push_back({"stretch_metric", layer, side.target, error, kStretchLimit, ok,
                                 ok ? "" : explanation(side, layer, t, *record)});
                });
}

void check_decomposition(const Subject& subject, std::vector<Check>& checks) {
  const auto stored = [](const SubjectSide&, int, const SideTransform& t) { return diagonalised_covariance(t); };
  for_each_side(
      subject, checks, [&](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
        if (has_constant_rotation(side, t)) return check_constant(side, layer, t, out);
        if (!usable(t, t.covariance) || (is_stretch(t) && !stretch_record(t))) {
          out.push_back(unknown("decomposition", layer, side, kNoCovariance));
          return;
        }
        const auto finding = examine(subject, stored, side, layer, t, true, kDecompositionLimit);
        if (!finding) {
          out.push_back(unknown("decomposition", layer, side, "\"" + side.objective + "\" cannot be taken apart"));
          return;
        }
        out.push_back({"decomposition", layer, side.target, finding->error, kDecompositionLimit,
                       finding->error <= kDecompositionLimit, finding->message});
      });
}

void check_decomposition_on_data(const Subject& subject, const std::vector<DataCovariance>& data,
                                 std::vector<Check>& checks) {
  // Other readings are judged on the data, too.
  const auto of_data = [&](const SubjectSide& side, int layer, const SideTransform&) {
    const auto found = std::find_if(data.rbegin(), data.rend(), [&](const DataCovariance& d) {
      return d.layer_id == layer && d.target == side.target;
    });
    return found == data.rend() ? MatrixStack() : found->covariance;
  };
  for (const DataCovariance& d : data) {
    for (const SubjectSide& side : subject.sides) {
      const SideTransform* t = find_layer(side, d.layer_id);
      if (t == nullptr || side.target != d.target || has_constant_rotation(side, *t) || !usable(*t, d.covariance))
        continue;
      if (is_stretch(*t)) continue;  // it diagonalises what is stored, not a covariance of the data
      const double limit = d.same_tokens ? kSameTokensLimit : kDisorderLimit;
      const auto finding = examine(subject, of_data, side, d.layer_id, *t, d.same_tokens, limit);
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
      if (ok) forget_unknown(checks, d);
      checks.push_back({"decomposition_on_data", d.layer_id, side.target, finding->error, limit, ok, message});
    }
  }
}

}  // namespace oscar::verify
