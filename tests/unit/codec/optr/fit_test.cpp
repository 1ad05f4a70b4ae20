// SPDX-License-Identifier: MIT
#include "codec/optr/fit.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "peers/baselines.hpp"
#include "support/backend.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

constexpr int kDim = 16, kHeads = 2, kQueryHeads = 4;
constexpr Windows kWindows{4, 16};

/// Sequences whose keys stand around 3, and an output projection that reads channels 0 to 3 only.
struct Calibration {
  std::vector<test::MemoryChunk> chunks;
  OptrData data;

  explicit Calibration(int sequences, std::int64_t tokens = 200) {
    for (int s = 0; s < sequences; ++s) {
      chunks.push_back(
          std::move(test::synthetic_layer({.tokens = tokens, .seed = 10 + static_cast<std::uint64_t>(s)})[0]));
      Tensor keys = convert(chunks.back().k, DType::kF32);
      for (float& value : keys.values<float>()) value += 3;
      chunks.back().k = std::move(keys);
    }
    for (const test::MemoryChunk& chunk : chunks) {
      data.sequences.push_back({heads_view(chunk.q, "q"), heads_view(chunk.k, "k"), heads_view(chunk.v, "v")});
    }
    data.output_forms = MatrixStack(kQueryHeads, kDim);
    for (int j = 0; j < kQueryHeads; ++j) {
      for (std::size_t c = 0; c < 4; ++c) data.output_forms[j][c * (kDim + 1)] = 1;
    }
  }
};

OptrFit fitted(const Calibration& calibration, int steps) {
  const auto backend = test::make_test_backend();
  return fit_optr(calibration.data, {.windows = kWindows, .steps = steps, .queries = 16}, *backend);
}

double distance_from_orthogonal(const MatrixStack& stack) {
  double worst = 0;
  for (int m = 0; m < stack.count; ++m) {
    for (std::size_t i = 0; i < kDim; ++i) {
      for (std::size_t j = 0; j < kDim; ++j) {
        double dot = i == j ? -1 : 0;
        for (std::size_t k = 0; k < kDim; ++k) dot += stack[m][k * kDim + i] * stack[m][k * kDim + j];
        worst = std::max(worst, std::abs(dot));
      }
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("OptR starts from OSCAR's rotations: every channel carries the same energy of queries") {
  const Calibration calibration(2);
  const OptrFit fit = fitted(calibration, 0);
  const MatrixStack& rotation = fit.layer.key.transform->rotation;
  REQUIRE(rotation.count == kHeads);
  CHECK(std::equal(rotation[0].begin(), rotation[0].end(), rotation[1].begin()));
  std::vector<double> energy(kDim), row(kDim);
  for (const QkvView& sequence : calibration.data.sequences) {
    std::vector<float> q(static_cast<std::size_t>(sequence.q.num_tokens) * kQueryHeads * kDim);
    sequence.q.token_rows(0, sequence.q.num_tokens, q.data());
    for (std::size_t at = 0; at < q.size(); at += kDim) {
      for (std::size_t j = 0; j < kDim; ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < kDim; ++i) sum += q[at + i] * rotation[0][i * kDim + j];
        energy[j] += sum * sum;
      }
    }
  }
  for (const double each : energy) CHECK(std::abs(each / energy[0] - 1) < 1e-4);
  CHECK_FALSE(fit.keys[0].kept());
}

TEST_CASE("OptR: rotations stay rotations, and only those stay that serve the held-out sequence") {
  const Calibration calibration(5);
  const OptrFit fit = fitted(calibration, 80), start = fitted(calibration, 0);
  CHECK(distance_from_orthogonal(fit.layer.key.transform->rotation) < 1e-6);
  CHECK(distance_from_orthogonal(fit.layer.value.transform->rotation) < 1e-6);
  const auto check = [&](const std::vector<OptrHead>& heads, const MatrixStack& now, const MatrixStack& before) {
    REQUIRE(heads.size() == kHeads);
    for (int h = 0; h < kHeads; ++h) {
      const bool kept = heads[static_cast<std::size_t>(h)].kept();
      CHECK(std::equal(now[h].begin(), now[h].end(), before[h].begin()) != kept);
    }
  };
  check(fit.keys, fit.layer.key.transform->rotation, start.layer.key.transform->rotation);
  check(fit.values, fit.layer.value.transform->rotation, start.layer.value.transform->rotation);
  // Which heads gain hangs on rounding: codes jump, and a descent goes another way.
  const auto gains = [](const std::vector<OptrHead>& heads) { return std::ranges::any_of(heads, &OptrHead::kept); };
  CHECK((gains(fit.keys) || gains(fit.values)));
}

TEST_CASE("OptR's mean is that of the keys of each head") {
  const Calibration calibration(3);
  const std::vector<double> mean = fitted(calibration, 0).layer.key.transform->mean;
  REQUIRE(mean.size() == kHeads * kDim);
  std::vector<double> sum(mean.size());
  for (const test::MemoryChunk& chunk : calibration.chunks) {
    const auto keys = chunk.k.values<float>();
    for (std::size_t i = 0; i < keys.size(); ++i) sum[i % sum.size()] += keys[i] / 600;
  }
  for (std::size_t i = 0; i < mean.size(); ++i) CHECK(std::abs(mean[i] - sum[i]) < 1e-5);
}

TEST_CASE("OptR depends on no thread") {
  const Calibration calibration(4);
  set_num_threads(1);
  const OptrFit one = fitted(calibration, 5);
  set_num_threads(3);
  const OptrFit three = fitted(calibration, 5);
  set_num_threads(0);
  CHECK(one.layer.key.transform->rotation.data == three.layer.key.transform->rotation.data);
  CHECK(one.layer.value.transform->rotation.data == three.layer.value.transform->rotation.data);
}

TEST_CASE("OptR's start has the same signs on every device") {
  // R H = U: the largest component of each of its columns is positive.
  const OptrFit fit = fitted(Calibration(2), 0);
  const MatrixStack &rotation = fit.layer.key.transform->rotation, hadamard = hadamard_baseline_matrix(kDim, kDim);
  for (std::size_t j = 0; j < kDim; ++j) {
    double largest = 0;
    for (std::size_t i = 0; i < kDim; ++i) {
      double component = 0;
      for (std::size_t k = 0; k < kDim; ++k) component += rotation[0][i * kDim + k] * hadamard.data[k * kDim + j];
      if (std::abs(component) > std::abs(largest)) largest = component;
    }
    CHECK(largest > 0);
  }
}

TEST_CASE("OptR needs a sequence to look at and one to hold out") {
  CHECK_THROWS_WITH_AS((void)fitted(Calibration(1), 1), doctest::Contains("there are 1"), DataError);
  CHECK_THROWS_WITH_AS((void)fitted(Calibration(3, 20), 1), doctest::Contains("there are 0"), DataError);
}

}  // namespace oscar
