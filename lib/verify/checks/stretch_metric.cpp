// SPDX-License-Identifier: MIT
#include "verify/checks/stretch_metric.hpp"

#include <algorithm>
#include <cmath>

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

}  // namespace oscar::verify
