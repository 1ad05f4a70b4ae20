// SPDX-License-Identifier: MIT
#include "method/coded_side.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"
#include "base/vector_clones.hpp"
#include "method/spectrum.hpp"

namespace oscar {

/// Adds to errors[f] what a grid of steps[f] leaves of a value, times the weight: the square of the distance to the
/// nearest level. Many grids side by side, since a sum waits for its last addition.
OSCAR_VECTOR_CLONES void add_grid_errors(double value, double weight, int levels, const double* __restrict steps,
                                         int count, double* __restrict errors) {
  const double half = levels / 2.0, highest = levels - 1.0, middle = (levels - 1) / 2.0;
  for (int f = 0; f < count; ++f) {
    double code = std::floor(value / steps[f] + half);
    code = code < 0.0 ? 0.0 : code;
    code = highest < code ? highest : code;
    const double error = (code - middle) * steps[f] - value;
    errors[f] += weight * (error * error);
  }
}

namespace {

constexpr int kWide = 16;
constexpr int kFactors = 51;
constexpr double kLeastFactor = 0.35, kMostFactor = 1.6;

/// The step that a unit Gaussian with so many levels is tried around.
double gaussian_step(int levels) {
  if (levels == 2) return 1.6;
  if (levels == 4) return 0.9957;
  return 2 * 3.2 / levels;
}

/// The scale of each row's wide and narrow channels, (n, 2): the root mean square of y / sigma over the class.
std::vector<double> class_scales(std::span<const float> rows, std::span<const int> levels,
                                 std::span<const float> sigma) {
  const std::size_t dim = levels.size(), n = rows.size() / dim;
  std::vector<double> scales(2 * n);
  double counts[2] = {0, 0};
  for (const int each : levels) {
    if (each > 1) ++counts[each >= kWide ? 0 : 1];
  }
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t i = 0; i < dim; ++i) {
      if (levels[i] == 1) continue;
      const double ratio = double{rows[r * dim + i]} / double{sigma[i]};
      scales[2 * r + (levels[i] >= kWide ? 0 : 1)] += ratio * ratio;
    }
    for (std::size_t c = 0; c < 2; ++c)
      scales[2 * r + c] = counts[c] > 0 ? std::sqrt(scales[2 * r + c] / counts[c]) : 0;
  }
  return scales;
}

using Steps = std::array<double, kFactors>;

double best_step(std::span<const double> values, std::span<const double> weights, int levels) {
  double energy = 0, weight = 0;
  for (std::size_t r = 0; r < values.size(); ++r) energy += weights[r] * values[r] * values[r], weight += weights[r];
  const double deviation = std::sqrt(energy / weight);
  Steps steps, errors{};
  for (int f = 0; f < kFactors; ++f) {
    const double factor = kLeastFactor + (kMostFactor - kLeastFactor) * f / (kFactors - 1);
    steps[static_cast<std::size_t>(f)] = gaussian_step(levels) * factor * deviation;
  }
  for (std::size_t r = 0; r < values.size(); ++r) {
    add_grid_errors(values[r], weights[r], levels, steps.data(), kFactors, errors.data());
  }
  double best = 0, least = std::numeric_limits<double>::infinity();
  for (std::size_t f = 0; f < kFactors; ++f) {
    if (errors[f] < least) least = errors[f], best = steps[f];
  }
  return best;
}

/// y = (x - mean) W of one head, in fp64. rows: (n, d).
std::vector<float> coded_rows(const Transform& transform, int head, std::span<const float> rows) {
  const auto dim = static_cast<std::size_t>(transform.rotation.dim);
  const std::span<const double> write = transform.rotation[head];
  std::vector<float> out(rows.size());
  std::vector<double> x(dim), y(dim);
  for (std::size_t first = 0; first < rows.size(); first += dim) {
    for (std::size_t i = 0; i < dim; ++i) {
      x[i] = rows[first + i] - (transform.mean.empty() ? 0 : transform.mean[static_cast<std::size_t>(head) * dim + i]);
    }
    std::fill(y.begin(), y.end(), 0.0);
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) y[j] += x[i] * write[i * dim + j];
    }
    for (std::size_t j = 0; j < dim; ++j) out[first + j] = static_cast<float>(y[j]);
  }
  return out;
}

}  // namespace

CodedGrid fit_grid(std::span<const float> rows, std::span<const int> levels) {
  const std::size_t dim = levels.size();
  OSCAR_CHECK(dim > 0 && !rows.empty() && rows.size() % dim == 0);
  const std::size_t n = rows.size() / dim;
  CodedGrid grid{std::vector<float>(dim), std::vector<float>(dim)};
  for (std::size_t i = 0; i < dim; ++i) {
    if (levels[i] == 1) continue;
    double energy = 0;
    for (std::size_t r = 0; r < n; ++r) energy += double{rows[r * dim + i]} * double{rows[r * dim + i]};
    grid.sigma[i] = static_cast<float>(std::sqrt(energy / static_cast<double>(n)));
    if (std::isnormal(grid.sigma[i])) continue;
    throw NumericalError("a channel that has levels is zero in all rows, or not finite", "channel " + std::to_string(i),
                         "give more text");
  }
  const std::vector<double> scales = class_scales(rows, levels, grid.sigma);
  std::vector<double> values, weights;
  for (std::size_t i = 0; i < dim; ++i) {
    if (levels[i] == 1) continue;
    values.clear(), weights.clear();
    for (std::size_t r = 0; r < n; ++r) {
      const double scale = scales[2 * r + (levels[i] >= kWide ? 0 : 1)];
      if (!(scale > 0)) continue;
      values.push_back(double{rows[r * dim + i]} / scale), weights.push_back(scale * scale);
    }
    grid.step[i] = static_cast<float>(best_step(values, weights, levels[i]));
  }
  return grid;
}

CodedSide coded_side(CodedBasis basis, const std::vector<std::vector<float>>& rows, const CodedLevels& levels) {
  reorder(basis, levels.order);
  if (!basis.rotary) mix_equal_levels(basis, levels.levels);
  for (std::vector<double>* values :
       {&basis.transform.rotation.data, &basis.transform.read_rotation.data, &basis.transform.mean}) {
    *values = rounded_to_f32(std::move(*values));
  }
  CodedSide side{std::move(basis.transform), {}, std::move(basis.rotary)};
  const auto dim = static_cast<std::size_t>(side.transform.rotation.dim);
  side.formats.resize(rows.size());
  parallel_for(rows.size(), [&](std::size_t head) {
    const auto own = std::span(levels.levels).subspan(head * dim, dim);
    const CodedGrid grid = fit_grid(coded_rows(side.transform, static_cast<int>(head), rows[head]), own);
    side.formats[head] = {{own.begin(), own.end()}, grid.step, grid.sigma};
  });
  return side;
}

}  // namespace oscar
