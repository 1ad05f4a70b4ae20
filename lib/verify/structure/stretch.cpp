// SPDX-License-Identifier: MIT
#include "verify/structure/stretch.hpp"

#include <algorithm>
#include <cmath>

#include "verify/structure/checks.hpp"
#include "verify/structure/for_each_side.hpp"

namespace oscar::verify {

bool is_stretch(const SideTransform& side) { return side.read_rotation.count > 0; }

std::optional<StretchRecord> stretch_record(const SideTransform& side) {
  const Json record = side.scores.value("stretch", Json::object());
  if (!record.contains("power") || !record.contains("lambda") || !record.contains("condition")) return std::nullopt;
  const auto conditions = record["condition"].get<std::vector<double>>();
  if (conditions.empty()) return std::nullopt;
  return StretchRecord{record["power"], record["lambda"], *std::max_element(conditions.begin(), conditions.end())};
}

Matrix regularised(std::span<const double> covariance, double lambda, std::size_t dim) {
  double mean = 0;
  for (std::size_t i = 0; i < dim; ++i) mean += covariance[i * dim + i] / static_cast<double>(dim);
  Matrix out(covariance.begin(), covariance.end());
  for (double& x : out) x /= mean;
  for (std::size_t i = 0; i < dim; ++i) out[i * dim + i] += lambda;
  return out;
}

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

namespace {

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

}  // namespace oscar::verify
