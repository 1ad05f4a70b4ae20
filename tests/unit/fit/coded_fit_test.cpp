// SPDX-License-Identifier: MIT
#include "fit/coded_fit.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

constexpr int kCodedTokens = 400, kCodedQueryHeads = 4, kCodedHeads = 2, kCodedDim = 16;

/// Channels fall off by a factor each, keys stand off zero.
Tensor coded_rows_of(int heads, unsigned seed, double fall, float offset, int dim = kCodedDim) {
  std::vector<float> values = test::gaussian_floats(static_cast<std::size_t>(kCodedTokens * heads * dim), seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto channel = static_cast<double>(i % static_cast<std::size_t>(dim));
    values[i] = values[i] * static_cast<float>(std::pow(fall, channel)) + offset;
  }
  return Tensor::from({kCodedTokens, heads, dim}, std::span<const float>(values));
}

test::MemorySource coded_source(const std::vector<int>& layers, int dim = kCodedDim) {
  std::map<int, std::vector<test::MemoryChunk>> chunks;
  for (const int id : layers) {
    const auto seed = static_cast<unsigned>(10 * id + 1);
    chunks[id].push_back({coded_rows_of(kCodedQueryHeads, seed, 0.9, 0, dim),
                          coded_rows_of(kCodedHeads, seed + 1, 0.7, 2, dim),
                          coded_rows_of(kCodedHeads, seed + 2, 0.8, 0, dim),
                          {{0, kCodedTokens}}});
  }
  return test::MemorySource(std::move(chunks));
}

CodedData coded_data(const CodedOptions& options, const MeasureDamage& measure, test::MemorySource source) {
  const auto backend = test::make_test_backend();
  Status status;
  return take_coded_data(source, options, {}, measure, nullptr, *backend, status);
}

CodedSet fit_coded_set(const CodedOptions& options, const MeasureDamage& measure,
                       CodedScope scope = CodedScope::kModel) {
  return fit_coded(coded_data(options, measure, coded_source({0, 3})), 3, scope, *test::make_test_backend());
}

const CodedOptions kCodedOptions{.windows = {4, 16}, .sample_rows = 200};

}  // namespace

TEST_CASE("a fit meets its budget, and what it writes can be read back") {
  const CodedSet set = fit_coded_set(kCodedOptions, {});
  REQUIRE(set.layers.size() == 2);
  CHECK(set.layers[1].layer_id == 3);
  CHECK(bits_of(set) <= 3);
  CHECK(bits_of(set) > 2.9);
  for (const CodedLayer& layer : set.layers) {
    for (const CodedSide* side : {&layer.key, &layer.value}) {
      CHECK(side->formats.size() == kCodedHeads);
      for (int head = 0; head < kCodedHeads; ++head) {
        const std::span<const double> write = side->transform.rotation[head],
                                      read = side->transform.read_rotation[head];
        for (std::size_t i = 0; i < kCodedDim; ++i) {
          double own = 0;
          for (std::size_t c = 0; c < kCodedDim; ++c) own += write[i * kCodedDim + c] * read[i * kCodedDim + c];
          CHECK(own == doctest::Approx(1).epsilon(1e-4));
        }
      }
    }
    // Keys have the mean of what is read, here about that of all.
    CHECK(layer.key.transform.mean[kCodedDim - 1] == doctest::Approx(2).epsilon(0.01));
    CHECK(layer.value.transform.mean.empty());
  }
}

TEST_CASE("bits go where errors cost the model") {
  std::vector<double> trial_bits;
  const auto measure = [&](const CodedSet& trial) {
    REQUIRE(trial.layers.size() == 1);
    const CodedLayer& layer = trial.layers.front();
    for (const CodedSide* side : {&layer.key, &layer.value}) trial_bits.push_back(bits_of(*side));
    return layer.layer_id == 0 ? CodedDamage{0.001, 0.001} : CodedDamage{0.1, 0.001};
  };
  const CodedSet set = fit_coded_set(kCodedOptions, measure);
  // Damage is measured with two bits of code for every side, and a byte for each of two scales.
  for (const double bits : trial_bits) CHECK(bits == 3);
  CHECK(bits_of(set.layers[1].key) > bits_of(set.layers[1].value) + 0.9);
  CHECK(bits_of(set.layers[1].key) > bits_of(set.layers[0].key) + 0.9);
  // What two bits cost a tenth of with two bits costs less with more.
  CHECK(set.layers[1].key.damage < 0.05);
  CHECK(set.layers[1].key.damage > 0.001);
  CHECK(bits_of(set) <= 3);
  // Layers that share a budget of their own do not give theirs away.
  const CodedSet by_layer = fit_coded_set(kCodedOptions, measure, CodedScope::kLayer);
  for (const CodedLayer& layer : by_layer.layers) CHECK((bits_of(layer.key) + bits_of(layer.value)) / 2 == 3);
}

TEST_CASE("damage that is no number is refused by its layer") {
  const auto measure = [](const CodedSet& trial) {
    return CodedDamage{0.1, trial.layers.front().layer_id == 3 ? NAN : 0.1};
  };
  CHECK_ERROR((void)fit_coded_set(kCodedOptions, measure), NumericalError, "layer 3");
}

TEST_CASE("keys of layers that feel shifts are not centred") {
  CodedOptions options = kCodedOptions;
  options.uncentred = {3};
  const CodedSet set = fit_coded_set(options, {});
  CHECK(!set.layers[0].key.transform.mean.empty());
  CHECK(set.layers[1].key.transform.mean.empty());
}

TEST_CASE("data that cannot be coded is refused") {
  CodedOptions options = kCodedOptions;
  options.windows = {64, 512};
  CHECK_ERROR((void)fit_coded_set(options, {}), DataError, "");
  CHECK_ERROR((void)coded_data(kCodedOptions, {}, coded_source({0}, 12)), DataError,
              "heads of keys have 12 channels, and the coded cache takes multiples of 8");
  const CodedData data = coded_data(kCodedOptions, {}, coded_source({0}));
  CHECK_ERROR((void)fit_coded(data, 0.5, CodedScope::kModel, *test::make_test_backend()), UsageError,
              "the scales of a row take 1");
}

}  // namespace oscar
