// SPDX-License-Identifier: MIT
// Plans of levels: by hand, by exhaustive search, and by a port of the greedy search in Python.
#include "method/coded_levels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/json.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

double error_of(std::span<const double> energy, std::span<const int> widths) {
  double error = 0;
  for (std::size_t i = 0; i < energy.size(); ++i) error += energy[i] * kCodedError[static_cast<std::size_t>(widths[i])];
  return error;
}

/// The least error of any widths that take at most `budget` bits.
double least_error(std::span<const double> energy, int budget) {
  std::vector<int> widths(energy.size(), 0);
  double least = error_of(energy, widths);
  for (;;) {
    std::size_t i = 0;
    while (i < widths.size() && ++widths[i] > 8) widths[i++] = 0;
    if (i == widths.size()) return least;
    if (std::accumulate(widths.begin(), widths.end(), 0) <= budget) least = std::min(least, error_of(energy, widths));
  }
}

CodedSpectrum spectrum(int layer, std::vector<double> blocks, double weight = 1) {
  CodedSpectrum out{
      .layer = layer, .side = "key", .dim = static_cast<int>(blocks.size()) * kLevelBlock, .weight = weight};
  for (const double each : blocks) out.lambda.insert(out.lambda.end(), kLevelBlock, each);
  return out;
}

std::vector<int> block_levels(const CodedLevels& plan) {
  std::vector<int> levels;
  for (std::size_t i = 0; i < plan.levels.size(); i += kLevelBlock) levels.push_back(plan.levels[i]);
  return levels;
}

}  // namespace

TEST_CASE("bits go where they take away most error") {
  CHECK(spend_bits(std::vector<double>{1, 1}, 4) == std::vector<int>{2, 2});
  CHECK(spend_bits(std::vector<double>{1, 1}, 3) == std::vector<int>{2, 1});
  CHECK(spend_bits(std::vector<double>{100, 1}, 3) == std::vector<int>{3, 0});
  CHECK(spend_bits(std::vector<double>{1, 1}, 100) == std::vector<int>{8, 8});
  CHECK(spend_bits(std::vector<double>{5, 3}, 0) == std::vector<int>{0, 0});
}

TEST_CASE("no plan of the same bits is much better") {
  std::mt19937 engine(1);
  std::uniform_real_distribution<double> exponent(-8, 2);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<double> energy(4);
    for (double& each : energy) each = std::exp2(exponent(engine));
    const int budget = 3 + trial % 10;
    CAPTURE(trial);
    // D is convex in bits, so one step at a time is best.
    CHECK(error_of(energy, spend_bits(energy, budget)) <= 1.0000001 * least_error(energy, budget));
  }
}

TEST_CASE("plans are those of a search in Python") {
  const Json cases = read_json(test::data("codec/coded_levels.json"));
  REQUIRE(cases.size() >= 6);
  for (const Json& each : cases) {
    const auto energy = each.at("energy").get<std::vector<double>>();
    CHECK(spend_bits(energy, each.at("budget").get<std::int64_t>()) == each.at("widths").get<std::vector<int>>());
  }
}

TEST_CASE("a plan counts its scales and meets its budget") {
  // 128 channels: 16 blocks. 2.125 bits a value are 2 bits of code, 32 bits a channel and head over 16 blocks.
  std::vector<double> blocks(16);
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = std::exp2(-static_cast<double>(i));
  const std::vector<CodedSpectrum> both{spectrum(0, blocks), spectrum(1, blocks, 100)};
  const auto bits_of = [](const CodedLevels& plan) {
    double bits = 0;
    for (const int levels : plan.levels) bits += std::log2(levels);
    return bits / static_cast<double>(plan.levels.size());
  };
  const auto each = plan_levels(both, 2.125, CodedScope::kHead);
  CHECK(bits_of(each[0]) == 2);
  CHECK(each[0].levels == each[1].levels);  // a weight changes nothing inside one head
  const auto model = plan_levels(both, 2.125, CodedScope::kModel);
  CHECK(bits_of(model[0]) + bits_of(model[1]) == 4);
  CHECK(bits_of(model[1]) > bits_of(model[0]) + 1);
  const auto layer = plan_levels(both, 2.125, CodedScope::kLayer);
  CHECK(bits_of(layer[0]) == 2);
  // Keys and values of one layer share, whatever stands between them: a head's, or the layer's.
  const std::vector<CodedSpectrum> apart{spectrum(0, blocks), spectrum(1, blocks), spectrum(0, blocks, 100)};
  for (const CodedScope scope : {CodedScope::kHead, CodedScope::kLayer}) {
    const auto shared = plan_levels(apart, 2.125, scope);
    CHECK(bits_of(shared[0]) + bits_of(shared[2]) == 4);
    CHECK(bits_of(shared[2]) > bits_of(shared[0]) + 1);
    CHECK(bits_of(shared[1]) == 2);
  }
  for (const CodedLevels& plan : {model[0], model[1], each[0]}) {
    CHECK(std::ranges::is_sorted(plan.levels, std::greater<>()));
    std::vector<int> order = plan.order;
    std::ranges::sort(order);
    for (std::size_t i = 0; i < order.size(); ++i) CHECK(order[i] == static_cast<int>(i));
  }
}

TEST_CASE("widths may come out of order, and channels follow them") {
  // A head whose second block has more energy than its first, as sums over rounded spectra may.
  const auto plan = plan_levels(std::vector{spectrum(0, {1, 16, 0.001})}, 2 + 16.0 / 24, CodedScope::kHead).front();
  CHECK(block_levels(plan) == std::vector<int>{16, 4, 1});
  CHECK(plan.order[0] == 8);
  CHECK(plan.order[8] == 0);
}

TEST_CASE("the expected error is that of Gaussian channels") {
  CHECK(expected_error(std::vector<double>{2, 1, 4}, std::vector<int>{1, 4, 2}) ==
        doctest::Approx(2 * kDroppedError + 0.1175 + 4 * 0.3634));
}

TEST_CASE("a head that hardly matters keeps one bit of its strongest block, and blocks without energy get none") {
  const std::vector<CodedSpectrum> uneven{spectrum(0, {1, 1}), spectrum(3, {1e-12, 2e-12})};
  const auto plans = plan_levels(uneven, 2, CodedScope::kModel);  // four bits in all
  CHECK(block_levels(plans[0]) == std::vector<int>{4, 2});
  CHECK(block_levels(plans[1]) == std::vector<int>{2, 1});
  CHECK(plans[1].order[0] == 8);
  CHECK(spend_bits(std::vector<double>{1, 0}, 12) == std::vector<int>{8, 0});
  CHECK(spend_bits(std::vector<double>{1, 0}, 3, std::vector<int>{0, 1}) == std::vector<int>{2, 1});
}

TEST_CASE("budgets that leave nothing are refused by name") {
  const std::vector<CodedSpectrum> uneven{spectrum(0, {1, 1}), spectrum(3, {1e-12, 1e-12})};
  // 0.25 bits a channel are half a bit for each block: one bit in all.
  CHECK_ERROR((void)plan_levels(uneven, 1.25, CodedScope::kModel), DataError, "nothing for the keys of KV head 0");
  CHECK_ERROR((void)plan_levels(uneven, 1.25, CodedScope::kModel), DataError, "layer 3");
  CHECK_ERROR((void)plan_levels(uneven, 1, CodedScope::kHead), UsageError, "the scales of a row take 1");
  CHECK_ERROR((void)plan_levels(uneven, 9.5, CodedScope::kHead), UsageError, "--bits");
  CHECK_ERROR((void)coded_scope_from_name("rack"), UsageError, "model, layer or head");
  CHECK(coded_scope_from_name("layer") == CodedScope::kLayer);
}

}  // namespace oscar
