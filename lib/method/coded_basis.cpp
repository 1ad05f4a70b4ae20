// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>
#include <tuple>

#include "base/errors.hpp"
#include "method/coded_levels.hpp"
#include "method/compose.hpp"

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

CodedBasis solve(const Problem& problem, CodedKind kind, Backend& backend) {
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
  CodedBasis basis{{MatrixStack(heads, dim), MatrixStack(heads, dim), {}}, {}, {}, kind};
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
  CodedBasis basis = solve(problem, CodedKind::kKey, backend);
  if (centred) basis.transform.mean = std::move(means);
  return basis;
}

namespace {

/// A symmetric matrix on the two channels of a pair: m + u and m - u on the diagonal, v beside it.
struct PairMatrix {
  double m = 0, u = 0, v = 0;

  PairMatrix() = default;
  PairMatrix(std::span<const double> matrix, std::size_t dim, std::size_t i, std::size_t j)
      : m((matrix[i * dim + i] + matrix[j * dim + j]) / 2),
        u((matrix[i * dim + i] - matrix[j * dim + j]) / 2),
        v((matrix[i * dim + j] + matrix[j * dim + i]) / 2) {}

  [[nodiscard]] double radius() const { return std::hypot(u, v); }
  /// The eigenvector (c, s) of the larger eigenvalue m + radius; that of the other is (-s, c).
  [[nodiscard]] std::array<double, 2> direction() const {
    if (radius() == 0) return {1, 0};
    return {std::sqrt(std::max(0.0, (1 + u / radius()) / 2)),
            std::copysign(std::sqrt(std::max(0.0, (1 - u / radius()) / 2)), v)};
  }
  /// The matrix of the same eigenvectors whose eigenvalues are the powers of those of this.
  [[nodiscard]] PairMatrix power(double exponent) const {
    const double high = std::pow(m + radius(), exponent), low = std::pow(m - radius(), exponent);
    PairMatrix out;
    out.m = (high + low) / 2;
    if (radius() > 0) out.u = (high - low) / 2 * u / radius(), out.v = (high - low) / 2 * v / radius();
    return out;
  }
  /// x (this), x a row.
  [[nodiscard]] std::array<double, 2> times(double x, double y) const {
    return {x * (m + u) + y * v, x * v + y * (m - u)};
  }
};

/// s b s.
PairMatrix between(const PairMatrix& s, const PairMatrix& b) {
  const auto first = s.times(b.m + b.u, b.v), second = s.times(b.v, b.m - b.u);  // of b s
  const auto top = s.times(first[0], second[0]), bottom = s.times(first[1], second[1]);
  PairMatrix out;
  out.m = (top[0] + bottom[1]) / 2, out.u = (top[0] - bottom[1]) / 2, out.v = (top[1] + bottom[0]) / 2;
  return out;
}

/// The mean over distances of what a matrix becomes as a pair of this frequency turns.
PairMatrix spread(PairMatrix metric, double frequency, Distances distances) {
  const double length = distances.to - distances.from, turned = 2 * frequency;
  if (!(length > 0) || turned == 0) return metric;
  const double angle = turned * length;
  // The mean of exp(i turned D) over the distances.
  const double along = (std::sin(turned * distances.to) - std::sin(turned * distances.from)) / angle;
  const double across = (std::cos(turned * distances.from) - std::cos(turned * distances.to)) / angle;
  const double u = metric.u * along - metric.v * across, v = metric.u * across + metric.v * along;
  metric.u += distances.part * (u - metric.u), metric.v += distances.part * (v - metric.v);
  return metric;
}

}  // namespace

CodedBasis coded_pair_basis(const MatrixStack& cost, const MatrixStack& queries, double plain_part,
                            const FisherSums& fisher, const Rotary& rotary, Distances distances) {
  const int dim = queries.dim, heads = queries.count;
  const auto width = static_cast<std::size_t>(dim);
  OSCAR_CHECK(cost.dim == dim && cost.count == heads && rotary.dim() == dim && fisher.base_key.count == heads);
  const std::span<const float> frequencies = rotary.frequencies(static_cast<std::int64_t>(distances.to));
  CodedBasis basis{{MatrixStack(heads, dim), MatrixStack(heads, dim), {}}, {}, rotary, CodedKind::kKeyBeforeRope};
  for (int h = 0; h < heads; ++h) {
    const auto head = static_cast<std::size_t>(h);
    const double read = positive_mean(cost[h], dim, "costs of keys in the history", h);
    const double plain = plain_part * read / positive_mean(queries[h], dim, "queries", h), weight = fisher.weight[head];
    const std::span<const double> sums = std::span(fisher.base_key_sum).subspan(head * width, width);
    for (const double sum : sums) basis.transform.mean.push_back(sum / weight);
    const std::span<const double> mean = std::span(basis.transform.mean).last(width);
    MatrixStack write(1, dim), back(1, dim);  // by pair, before they are sorted
    std::vector<double> lambda;
    double variance = 0;
    for (std::size_t p = 0; p < width; p += 2) {
      const auto i = static_cast<std::size_t>(rotary.pairs[p]), j = static_cast<std::size_t>(rotary.pairs[p + 1]);
      PairMatrix metric = spread({cost[h], width, i, j}, frequencies[p / 2], distances);
      metric.m += plain * PairMatrix(queries[h], width, i, j).m + kMetricFloor * (1 + plain_part) * read;
      PairMatrix keys(fisher.base_key[h], width, i, j);
      keys.m = keys.m / weight - (mean[i] * mean[i] + mean[j] * mean[j]) / 2;
      keys.u = keys.u / weight - (mean[i] * mean[i] - mean[j] * mean[j]) / 2;
      keys.v = keys.v / weight - mean[i] * mean[j];
      variance += 2 * keys.m;
      if (rotary.is_fast(p / 2)) metric.u = metric.v = keys.u = keys.v = 0;  // both turn against each other
      const PairMatrix root = metric.power(0.5), inverse = metric.power(-0.5), whitened = between(root, keys);
      const auto [c, s] = whitened.direction();
      for (const auto& [to, x, y] : {std::tuple(p, c, s), std::tuple(p + 1, -s, c)}) {
        const auto written = root.times(x, y), read_back = inverse.times(x, y);
        write[0][i * width + to] = written[0], write[0][j * width + to] = written[1];
        back[0][i * width + to] = read_back[0], back[0][j * width + to] = read_back[1];
      }
      lambda.push_back(std::max(whitened.m + whitened.radius(), 0.0));
      lambda.push_back(std::max(whitened.m - whitened.radius(), 0.0));
    }
    const bool finite = std::ranges::all_of(lambda, [](double x) { return std::isfinite(x); });
    if (!finite || !(variance > kLeastVariance * trace(fisher.base_key[h], dim) / weight)) {
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
  return solve(problem, CodedKind::kValue, backend);
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
