// SPDX-License-Identifier: MIT
// The gradient against differences of the KL, which is computed here by its definition.
#include "kernels/key_gradient.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "base/threads.hpp"
#include "kernels/cpu/ops.hpp"
#include "support/support.hpp"
#include "unit/kernels/samples.hpp"

namespace oscar {
namespace {

constexpr int kKeyDim = 8, kKeys = 150;
constexpr Windows kKeyWindows{4, 16};
const RowCodec kCodec{.levels = 3, .grid = Grid::kLeastSquares};

KeyReads reads() {
  KeyReads out{.head_dim = kKeyDim, .keys = test::gaussian_floats(kKeys * kKeyDim, 1), .queries = {}, .positions = {}};
  for (std::int64_t i = 10; i < kKeys; ++i) out.positions.push_back(i);
  out.queries = test::gaussian_floats(out.positions.size() * kKeyDim, 2);
  return out;
}

std::vector<float> identity() {
  std::vector<float> unit(kKeyDim * kKeyDim);
  for (int i = 0; i < kKeyDim; ++i) unit[static_cast<std::size_t>(i * (kKeyDim + 1))] = 1;
  return unit;
}

KlGradient gradient(const KeyReads& reads, const std::vector<float>& rotation) {
  const KeyReads* const one = &reads;
  return cpu::hold({&one, 1}, kCodec, kKeyWindows)->gradient(rotation);
}

double dot(const double* a, const float* b) {
  double sum = 0;
  for (int c = 0; c < kKeyDim; ++c) sum += a[c] * b[c];
  return sum;
}

/// sum_j p_j (log p_j - log p^_j) for p = softmax(exact), p^ = softmax(exact + error).
double divergence(const std::vector<double>& exact, const std::vector<double>& error) {
  double z = 0, z_hat = 0, kl = 0;
  for (std::size_t j = 0; j < exact.size(); ++j) {
    z += std::exp(exact[j]);
    z_hat += std::exp(exact[j] + error[j]);
  }
  for (std::size_t j = 0; j < exact.size(); ++j) kl += std::exp(exact[j]) / z * (std::log(z_hat / z) - error[j]);
  return kl;
}

/// With errors e of the keys, read by queries that the plane (a, b) turns by an angle.
double kl_turned(const KeyReads& reads, const std::vector<float>& e, int a, int b, double angle) {
  double kl = 0;
  for (std::size_t i = 0; i < reads.positions.size(); ++i) {
    std::vector<double> y(&reads.queries[i * kKeyDim], &reads.queries[i * kKeyDim] + kKeyDim), x = y;
    y[a] = std::cos(angle) * x[a] - std::sin(angle) * x[b];
    y[b] = std::sin(angle) * x[a] + std::cos(angle) * x[b];
    std::vector<double> exact, error;
    for (std::int64_t j = 0; j <= reads.positions[i]; ++j) {
      const bool history = j >= kKeyWindows.sink && j <= reads.positions[i] - kKeyWindows.recent;
      exact.push_back(dot(x.data(), &reads.keys[static_cast<std::size_t>(j * kKeyDim)]) / std::sqrt(double{kKeyDim}));
      error.push_back(history ? dot(y.data(), &e[static_cast<std::size_t>(j * kKeyDim)]) / std::sqrt(double{kKeyDim})
                              : 0);
    }
    kl += divergence(exact, error);
  }
  return kl;
}

}  // namespace

TEST_CASE("the gradient of the softmax KL equals its differences, and the KL its definition") {
  const KeyReads sample = reads();
  const KlGradient found = gradient(sample, identity());
  std::vector<float> e(sample.keys.size());
  cpu::quantize(sample.keys, kKeyDim, kCodec, Precision::kExact, e, nullptr);
  for (std::size_t i = 0; i < e.size(); ++i) e[i] -= sample.keys[i];
  CHECK(found.softmax_kl == doctest::Approx(kl_turned(sample, e, 0, 1, 0)).epsilon(1e-5));
  constexpr double kStep = 1e-4;
  for (int a = 0; a < kKeyDim; ++a) {
    for (int b = a + 1; b < kKeyDim; ++b) {
      const double difference = (kl_turned(sample, e, a, b, kStep) - kl_turned(sample, e, a, b, -kStep)) / (2 * kStep);
      // y exp(A) with A_ba = angle = -A_ab.
      const double derivative = found.gradient[static_cast<std::size_t>(a * kKeyDim + b)] -
                                found.gradient[static_cast<std::size_t>(b * kKeyDim + a)];
      CHECK(derivative == doctest::Approx(difference).epsilon(1e-3).scale(1));
    }
  }
}

}  // namespace oscar
