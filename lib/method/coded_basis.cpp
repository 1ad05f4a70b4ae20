// SPDX-License-Identifier: MIT
#include "method/coded_basis.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "method/spectrum.hpp"

namespace oscar {
namespace {

std::size_t square(int dim) { return static_cast<std::size_t>(dim) * static_cast<std::size_t>(dim); }

double mean_diagonal(std::span<const double> matrix, int dim) { return trace(matrix, dim) / dim; }

/// Keys whose variance is less, as a part of their energy, are constant but for rounding.
constexpr double kLeastVariance = 1e-10;

/// Throws NumericalError unless the mean of the diagonal is positive and finite.
double positive_mean(std::span<const double> matrix, int dim, const std::string& what, int head) {
  const double mean = mean_diagonal(matrix, dim);
  if (mean > 0 && std::isfinite(mean)) return mean;
  throw NumericalError("the " + what + " have no energy, or one that is not finite", "KV head " + std::to_string(head),
                       "give more text, or leave the layer out");
}

/// Metrics of mean diagonal `scale` with a floor, and covariances; both (heads, d, d), the metrics over their scale.
struct Problem {
  MatrixStack metric, covariance;
  std::vector<double> scale;
};

void add_identity(double part, std::span<double> metric, int dim) {
  const double floor = part * mean_diagonal(metric, dim);
  for (int i = 0; i < dim; ++i) metric[static_cast<std::size_t>(i) * static_cast<std::size_t>(dim + 1)] += floor;
}

CodedBasis solve(const Problem& problem, Backend& backend) {
  const int dim = problem.metric.dim, heads = problem.metric.count;
  const std::size_t size = square(dim);
  const std::vector<Spectrum> metrics = decompose(problem.metric, backend);
  MatrixStack whitened(heads, dim);
  std::vector<Matrix> roots;
  for (int h = 0; h < heads; ++h) {
    const auto at = static_cast<std::size_t>(h);
    roots.push_back(power_of(metrics[at], 0.5));
    const Matrix left = multiply(roots.back(), problem.covariance[h], dim);
    const Matrix both = multiply(left, roots.back(), dim);
    std::copy(both.begin(), both.end(), whitened[h].begin());
  }
  const std::vector<Spectrum> spectra = decompose(whitened, backend);
  for (int h = 0; h < heads; ++h) {
    if (std::ranges::all_of(spectra[static_cast<std::size_t>(h)].values, [](double x) { return std::isfinite(x); }))
      continue;
    throw NumericalError("a covariance has entries that are not finite", "KV head " + std::to_string(h),
                         "look at the data of the layer, or leave it out");
  }
  CodedBasis basis{{MatrixStack(heads, dim), MatrixStack(heads, dim), {}}, {}};
  for (int h = 0; h < heads; ++h) {
    const auto at = static_cast<std::size_t>(h);
    const double root_scale = std::sqrt(problem.scale[at]);
    const Matrix inverse = power_of(metrics[at], -0.5);
    Matrix vectors(size);  // columns by descending eigenvalue
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t row = i / static_cast<std::size_t>(dim), column = i % static_cast<std::size_t>(dim);
      vectors[i] = spectra[at].vectors[(row + 1) * static_cast<std::size_t>(dim) - 1 - column];
    }
    const Matrix write = multiply(roots[at], vectors, dim), read = multiply(inverse, vectors, dim);
    for (std::size_t i = 0; i < size; ++i) {
      basis.transform.rotation[h][i] = root_scale * write[i];
      basis.transform.read_rotation[h][i] = read[i] / root_scale;
    }
    for (int c = dim - 1; c >= 0; --c) {
      basis.lambda.push_back(problem.scale[at] * std::max(spectra[at].values[static_cast<std::size_t>(c)], 0.0));
    }
  }
  return basis;
}

/// Columns [first, first + n) of a matrix become their products with Sylvester's Hadamard matrix over sqrt(n).
void turn_columns(std::span<double> matrix, std::size_t dim, std::size_t first, std::size_t n) {
  for (std::size_t row = 0; row < dim; ++row) {
    const std::span<double> x = matrix.subspan(row * dim + first, n);
    for (std::size_t half = 1; half < n; half *= 2) {
      for (std::size_t i = 0; i < n; ++i) {
        if ((i & half) != 0) continue;
        const double a = x[i], b = x[i + half];
        x[i] = a + b, x[i + half] = a - b;
      }
    }
    for (std::size_t i = 0; i < n; ++i) x[i] /= std::sqrt(static_cast<double>(n));
  }
}

}  // namespace

CodedBasis coded_key_basis(const MatrixStack& cost, const MatrixStack& queries, double plain_part,
                           const FisherSums& fisher, bool centred, Backend& backend) {
  const int dim = queries.dim, heads = queries.count;
  OSCAR_CHECK(cost.dim == dim && cost.count == heads && fisher.key.dim == dim && fisher.key.count == heads);
  Problem problem{MatrixStack(heads, dim), MatrixStack(heads, dim), {}};
  std::vector<double> means;
  for (int h = 0; h < heads; ++h) {
    const double read = positive_mean(cost[h], dim, "costs of keys in the history", h);
    const double plain = positive_mean(queries[h], dim, "queries", h),
                 weight = fisher.weight[static_cast<std::size_t>(h)];
    const double* const sum = fisher.key_sum.data() + static_cast<std::ptrdiff_t>(h) * dim;
    for (int i = 0; i < dim; ++i) means.push_back(centred ? sum[i] / weight : 0);
    const double* const mean = means.data() + static_cast<std::ptrdiff_t>(h) * dim;
    for (std::size_t i = 0; i < square(dim); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(dim), column = i % static_cast<std::size_t>(dim);
      problem.metric[h][i] = cost[h][i] / read + plain_part * queries[h][i] / plain;
      problem.covariance[h][i] = fisher.key[h][i] / weight - mean[row] * mean[column];
    }
    add_identity(kMetricFloor, problem.metric[h], dim);
    problem.scale.push_back(read);
    const double energy = positive_mean(fisher.key[h], dim, "keys of the history", h) / weight;
    if (mean_diagonal(problem.covariance[h], dim) > kLeastVariance * energy) continue;
    throw NumericalError("the keys of the history do not vary", "KV head " + std::to_string(h),
                         "give more text, or leave the layer out");
  }
  CodedBasis basis = solve(problem, backend);
  if (centred) basis.transform.mean = std::move(means);
  return basis;
}

namespace {

/// The covariance of two channels of rows, and their means.
struct PairMoments {
  double mean[2] = {0, 0}, first = 0, second = 0, both = 0;

  PairMoments(std::span<const float> rows, std::size_t dim, std::size_t i, std::size_t j) {
    const std::size_t count = rows.size() / dim;
    for (std::size_t r = 0; r < count; ++r) mean[0] += rows[r * dim + i], mean[1] += rows[r * dim + j];
    for (double& each : mean) each /= static_cast<double>(count);
    for (std::size_t r = 0; r < count; ++r) {
      const double x = rows[r * dim + i] - mean[0], y = rows[r * dim + j] - mean[1];
      first += x * x, second += y * y, both += x * y;
    }
    for (double* each : {&first, &second, &both}) *each /= static_cast<double>(count);
  }
};

}  // namespace

CodedBasis coded_pair_basis(const MatrixStack& cost, const MatrixStack& queries, double plain_part,
                            const std::vector<std::vector<float>>& rows, const Rotary& rotary) {
  const int dim = queries.dim, heads = queries.count;
  const auto width = static_cast<std::size_t>(dim);
  OSCAR_CHECK(cost.dim == dim && cost.count == heads && rotary.dim() == dim && std::ssize(rows) == heads);
  CodedBasis basis{{MatrixStack(heads, dim), MatrixStack(heads, dim), {}}, {}, rotary};
  basis.transform.mean.resize(rows.size() * width);
  for (int h = 0; h < heads; ++h) {
    const double read = positive_mean(cost[h], dim, "costs of keys in the history", h);
    const double plain = plain_part * read / positive_mean(queries[h], dim, "queries", h);
    MatrixStack write(1, dim), back(1, dim);  // by pair, before they are sorted
    std::vector<double> lambda;
    for (std::size_t p = 0; p < width; p += 2) {
      const auto i = static_cast<std::size_t>(rotary.pairs[p]), j = static_cast<std::size_t>(rotary.pairs[p + 1]);
      const auto diagonal = [&](const MatrixStack& of) { return (of[h][i * (width + 1)] + of[h][j * (width + 1)]) / 2; };
      const double metric = diagonal(cost) + plain * diagonal(queries) + kMetricFloor * read;
      const PairMoments moments(rows[static_cast<std::size_t>(h)], width, i, j);
      const double half = (moments.first - moments.second) / 2, radius = std::hypot(half, moments.both);
      // The eigenvector of the larger variance is (c, s), the other (-s, c).
      const double c = radius > 0 ? std::sqrt((1 + half / radius) / 2) : 1;
      const double s = radius > 0 ? std::copysign(std::sqrt((1 - half / radius) / 2), moments.both) : 0;
      const double root = std::sqrt(metric), centre = (moments.first + moments.second) / 2;
      lambda.push_back(metric * (centre + radius)), lambda.push_back(metric * std::max(centre - radius, 0.0));
      const std::size_t at_i = i * width + p, at_j = j * width + p;
      write[0][at_i] = root * c, write[0][at_j] = root * s, write[0][at_i + 1] = -root * s, write[0][at_j + 1] = root * c;
      back[0][at_i] = c / root, back[0][at_j] = s / root, back[0][at_i + 1] = -s / root, back[0][at_j + 1] = c / root;
      basis.transform.mean[static_cast<std::size_t>(h) * width + i] = moments.mean[0];
      basis.transform.mean[static_cast<std::size_t>(h) * width + j] = moments.mean[1];
    }
    if (!(std::ranges::max(lambda) > 0) || !std::isfinite(std::ranges::max(lambda))) {
      throw NumericalError("the keys of the history do not vary, or not by finite amounts",
                           "KV head " + std::to_string(h), "give more text, or leave the layer out");
    }
    std::vector<std::size_t> order(width);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t column) { return lambda[column]; });
    for (std::size_t column = 0; column < width; ++column) {
      basis.lambda.push_back(lambda[order[column]]);
      for (std::size_t row = 0; row < width; ++row) {
        basis.transform.rotation[h][row * width + column] = write[0][row * width + order[column]];
        basis.transform.read_rotation[h][row * width + column] = back[0][row * width + order[column]];
      }
    }
  }
  return basis;
}

CodedBasis coded_value_basis(const MatrixStack& cost, double plain_part, const MatrixStack& weighted,
                             const MatrixStack& plain, Backend& backend) {
  const int dim = cost.dim, heads = cost.count;
  OSCAR_CHECK(weighted.dim == dim && plain.dim == dim && weighted.count == heads && plain.count == heads);
  Problem problem{MatrixStack(heads, dim), MatrixStack(heads, dim), {}};
  for (int h = 0; h < heads; ++h) {
    const double scale = positive_mean(cost[h], dim, "costs of values in the history", h);
    const double ratio =
        positive_mean(plain[h], dim, "values", h) / positive_mean(weighted[h], dim, "values of the history", h);
    for (std::size_t i = 0; i < square(dim); ++i) {
      problem.metric[h][i] = cost[h][i] / scale;
      problem.covariance[h][i] = weighted[h][i] * ratio;
    }
    add_identity(plain_part + kMetricFloor, problem.metric[h], dim);
    problem.scale.push_back(scale);
  }
  return solve(problem, backend);
}

void reorder(CodedBasis& basis, std::span<const int> order) {
  const auto dim = static_cast<std::size_t>(basis.transform.rotation.dim);
  OSCAR_CHECK(order.size() == basis.lambda.size());
  const CodedBasis from = basis;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const std::size_t h = place / dim, to = place % dim, column = static_cast<std::size_t>(order[place]);
    basis.lambda[place] = from.lambda[h * dim + column];
    for (std::size_t row = 0; row < dim; ++row) {
      const auto head = static_cast<int>(h);
      basis.transform.rotation[head][row * dim + to] = from.transform.rotation[head][row * dim + column];
      basis.transform.read_rotation[head][row * dim + to] = from.transform.read_rotation[head][row * dim + column];
    }
  }
}

void mix_equal_levels(CodedBasis& basis, std::span<const int> levels) {
  const auto dim = static_cast<std::size_t>(basis.transform.rotation.dim);
  OSCAR_CHECK(levels.size() == basis.lambda.size());
  for (std::size_t begin = 0; begin < levels.size();) {
    std::size_t end = begin + 1;
    while (end < levels.size() && end % dim != 0 && levels[end] == levels[begin]) ++end;
    const auto head = static_cast<int>(begin / dim);
    while (begin < end) {  // pieces of powers of two, largest first
      const std::size_t piece = std::bit_floor(end - begin);
      if (levels[begin] > 1) {
        turn_columns(basis.transform.rotation[head], dim, begin % dim, piece);
        turn_columns(basis.transform.read_rotation[head], dim, begin % dim, piece);
      }
      begin += piece;
    }
  }
}

}  // namespace oscar
