// SPDX-License-Identifier: MIT
#include "method/stretch.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "method/spectrum.hpp"
#include "tensor/dtype.hpp"

namespace oscar {
namespace {

using Spectra = std::vector<Spectrum>;

/// Every head of every problem, in a row.
struct Heads {
  int dim = 0;
  MatrixStack key, query;  // as given
  MatrixStack a, b;        // scaled to a mean eigenvalue of 1, plus lambda
};

MatrixStack stack_of(const std::vector<Matrix>& matrices, int dim) {
  MatrixStack stack(static_cast<int>(matrices.size()), dim);
  for (int i = 0; i < stack.count; ++i) {
    std::copy(matrices[static_cast<std::size_t>(i)].begin(), matrices[static_cast<std::size_t>(i)].end(),
              stack[i].begin());
  }
  return stack;
}

/// f(head) for each head, as a stack.
template <class F>
MatrixStack for_heads(const Heads& heads, const F& f) {
  std::vector<Matrix> matrices(static_cast<std::size_t>(heads.key.count));
  parallel_for(matrices.size(), [&](std::size_t h) { matrices[h] = f(static_cast<int>(h)); });
  return stack_of(matrices, heads.dim);
}

void append(const MatrixStack& from, MatrixStack& to) {
  to.count += from.count;
  to.data.insert(to.data.end(), from.data.begin(), from.data.end());
}

Matrix regularised(std::span<const double> covariance, double lambda, int dim) {
  const double mean = std::max(trace(covariance, dim) / dim, 1e-300);
  Matrix out(covariance.begin(), covariance.end());
  for (double& value : out) value /= mean;
  for (int i = 0; i < dim; ++i) out[static_cast<std::size_t>(i) * (static_cast<std::size_t>(dim) + 1)] += lambda;
  return out;
}

Heads gather(const std::vector<StretchProblem>& problems, double lambda) {
  Heads heads;
  heads.dim = problems.front().key->dim;
  heads.key = heads.query = MatrixStack(0, heads.dim);
  for (const StretchProblem& problem : problems) {
    OSCAR_CHECK(problem.key->dim == heads.dim && problem.query->dim == heads.dim);
    OSCAR_CHECK(problem.key->count == problem.query->count);
    append(*problem.key, heads.key);
    append(*problem.query, heads.query);
  }
  heads.a = for_heads(heads, [&](int h) { return regularised(heads.key[h], lambda, heads.dim); });
  heads.b = for_heads(heads, [&](int h) { return regularised(heads.query[h], lambda, heads.dim); });
  return heads;
}

/// x y x
Matrix sandwich(const Matrix& x, std::span<const double> y, int dim) { return multiply(multiply(x, y, dim), x, dim); }

/// Spectra of x[h]^power[h] … of C_K^1/2 C_Q C_K^1/2.
Spectra inner_spectra(const Heads& heads, const Spectra& key, const MatrixStack& query, Backend& backend) {
  return decompose(
      for_heads(heads,
                [&](int h) { return sandwich(power_of(key[static_cast<std::size_t>(h)], 0.5), query[h], heads.dim); }),
      backend);
}

/// tr(C_K) tr(C_Q) / tr(inner^1/2)^2.
double gain_of(const Heads& heads, int h, const Spectrum& inner) {
  double root = 0;
  for (const double value : inner.values) root += std::sqrt(std::max(value, 0.0));
  return trace(heads.key[h], heads.dim) * trace(heads.query[h], heads.dim) / std::max(root * root, 1e-300);
}

/// Eigenvalues within max_condition^(2 / power) of the largest, so that those of M^(power/2) are within max_condition.
void bound_condition(Spectrum& metric, const StretchOptions& options) {
  if (options.power <= 0) return;
  const double lowest = metric.values.back() / std::pow(options.max_condition, 2 / options.power);
  for (double& value : metric.values) value = std::max(value, lowest);
}

double condition_of(const Spectrum& metric, double power) {
  return std::pow(metric.values.back() / metric.values.front(), power / 2);
}

double product_trace(std::span<const double> a, std::span<const double> b) {  // of a b, both symmetric
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// tr(E^T C_Q E C_K) / tr(C_Q C_K), E = bf16(read) bf16(write)^T - I.
double disturbance_of(const Heads& heads, int h, const Matrix& write, const Matrix& read) {
  const auto served = [](Matrix matrix) {
    for (double& value : matrix) value = round_to_bf16(static_cast<float>(value));
    return matrix;
  };
  Matrix e = multiply(served(read), transposed(served(write), heads.dim), heads.dim);
  for (int i = 0; i < heads.dim; ++i) e[static_cast<std::size_t>(i) * (static_cast<std::size_t>(heads.dim) + 1)] -= 1;
  const Matrix noise = multiply(multiply(transposed(e, heads.dim), heads.query[h], heads.dim), e, heads.dim);
  return product_trace(noise, heads.key[h]) / std::max(product_trace(heads.query[h], heads.key[h]), 1e-300);
}

struct Pair {
  Matrix write, read;
  double bf16_disturbance = 0;
};

Pair pair_of(const Heads& heads, int h, const Spectrum& metric, const Spectrum& tail, const StretchOptions& options) {
  const Matrix basis = compose({tail}, options.composition).data;
  Pair pair{rounded_to_f32(multiply(power_of(metric, options.power / 2), basis, heads.dim)),
            rounded_to_f32(multiply(power_of(metric, -options.power / 2), basis, heads.dim))};
  pair.bf16_disturbance = disturbance_of(heads, h, pair.write, pair.read);
  return pair;
}

}  // namespace

std::vector<Stretched> stretch(const std::vector<StretchProblem>& problems, const StretchOptions& options,
                               Backend& backend) {
  if (problems.empty()) return {};
  const Heads heads = gather(problems, options.lambda);
  const int dim = heads.dim;
  const auto at = [](int h) { return static_cast<std::size_t>(h); };
  const Spectra plain = inner_spectra(heads, decompose(heads.key, backend), heads.query, backend);
  const Spectra key = decompose(heads.a, backend);
  const Spectra inner = inner_spectra(heads, key, heads.b, backend);
  Spectra metric = decompose(
      for_heads(heads, [&](int h) { return sandwich(power_of(key[at(h)], -0.5), power_of(inner[at(h)], 0.5), dim); }),
      backend);
  for (Spectrum& spectrum : metric) bound_condition(spectrum, options);
  const Spectra tails = decompose(
      for_heads(heads, [&](int h) { return sandwich(power_of(metric[at(h)], options.power / 2), heads.a[h], dim); }),
      backend);
  std::vector<Pair> pairs(metric.size());
  parallel_for(pairs.size(),
               [&](std::size_t h) { pairs[h] = pair_of(heads, static_cast<int>(h), metric[h], tails[h], options); });
  std::vector<Stretched> results;
  int h = 0;
  for (const StretchProblem& problem : problems) {
    Stretched& result = results.emplace_back();
    std::vector<Matrix> write, read;
    for (int i = 0; i < problem.key->count; ++i, ++h) {
      write.push_back(std::move(pairs[at(h)].write));
      read.push_back(std::move(pairs[at(h)].read));
      result.eigenvalues.insert(result.eigenvalues.end(), tails[at(h)].values.begin(), tails[at(h)].values.end());
      result.predicted_gain.push_back(gain_of(heads, h, plain[at(h)]));
      result.condition.push_back(condition_of(metric[at(h)], options.power));
      result.bf16_disturbance.push_back(pairs[at(h)].bf16_disturbance);
    }
    result.transform = {stack_of(write, dim), stack_of(read, dim), {}};
  }
  return results;
}

}  // namespace oscar
