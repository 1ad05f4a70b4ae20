// SPDX-License-Identifier: MIT
// Plans of levels: by hand, and by exhaustive search.
#include "method/coded_levels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>

#include "kernels/reference/coded_operands.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

double error_of(std::span<const double> energy, std::span<const std::uint8_t> widths, CodedKind kind) {
  double error = 0;
  for (std::size_t i = 0; i < energy.size(); ++i)
    error += energy[i] * kCodedError[static_cast<std::size_t>(kind)][widths[i]];
  return error;
}

/// All widths of so many blocks that do not increase and take so many bits.
template <class Task>
void for_all_widths(std::size_t blocks, int bits, const Task& task, std::vector<std::uint8_t> widths = {}) {
  if (widths.size() == blocks) {
    if (bits == 0) task(widths);
    return;
  }
  for (int width = std::min<int>(widths.empty() ? 8 : widths.back(), bits); width >= 0; --width) {
    widths.push_back(static_cast<std::uint8_t>(width));
    for_all_widths(blocks, bits - width, task, widths);
    widths.pop_back();
  }
}

CodedSpectrum spectrum(int layer, std::vector<double> blocks, double weight = 1) {
  CodedSpectrum out{.layer = layer, .dim = static_cast<int>(blocks.size()) * kLevelBlock, .weight = weight};
  for (const double each : blocks) out.lambda.insert(out.lambda.end(), kLevelBlock, each);
  return out;
}

std::vector<int> block_levels(const CodedLevels& plan) {
  std::vector<int> levels;
  for (std::size_t i = 0; i < plan.levels.size(); i += kLevelBlock) levels.push_back(plan.levels[i]);
  return levels;
}

}  // namespace

TEST_CASE("no widths of as many bits and operands err much less, and operands weigh") {
  std::mt19937 engine(1);
  std::uniform_real_distribution<double> exponent(-8, 2);
  std::vector<std::vector<double>> energies(20, std::vector<double>(8));
  std::vector<CodedSpectrum> heads;
  for (std::vector<double>& energy : energies) {
    for (double& each : energy) each = std::exp2(exponent(engine));
    std::ranges::sort(energy, std::greater<>());
    heads.push_back(spectrum(static_cast<int>(heads.size()), energy));
    if (heads.size() % 2 == 0) heads.back().kind = CodedKind::kValue;
  }
  const std::vector<CodedLevels> plans = plan_levels(heads, 2 + 16.0 / 64, CodedScope::kModel);
  double error = 0, least_error = 0;
  int bits = 0, operands = 0, least_operands = 0;
  for (std::size_t head = 0; head < heads.size(); ++head) {
    CAPTURE(head);
    std::vector<std::uint8_t> own, least;
    for (const int levels : block_levels(plans[head])) {
      own.push_back(static_cast<std::uint8_t>(std::countr_zero(static_cast<unsigned>(levels))));
    }
    const CodedKind kind = heads[head].kind;
    const auto count = [&](const std::vector<std::uint8_t>& widths) {
      return reference::count_operands(widths, kind != CodedKind::kValue);
    };
    const auto error_with = [&](const std::vector<std::uint8_t>& widths) {
      return error_of(energies[head], widths, kind);
    };
    const int own_bits = std::accumulate(own.begin(), own.end(), 0);
    CHECK(own_bits % 8 == 0);
    for_all_widths(8, own_bits, [&](const std::vector<std::uint8_t>& widths) {
      const double theirs = error_with(widths);
      if (least.empty() || theirs < error_with(least)) least = widths;
      if (count(widths) == count(own)) CHECK(error_with(own) <= 1.06 * theirs);
    });
    error += error_with(own), least_error += error_with(least);
    bits += own_bits, operands += count(own), least_operands += count(least);
  }
  CHECK(bits == 20 * 8 * 2);
  CHECK(operands < least_operands);
  CHECK(error < 1.1 * least_error);
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

TEST_CASE("the expected error is that of Gaussian channels, and what values lack alike costs more") {
  const std::vector<double> lambda{2, 1, 4};
  const std::vector<int> levels{1, 4, 2};
  CHECK(expected_error(lambda, levels, CodedKind::kKey) == doctest::Approx(2 * 3 + 0.1188 + 4 * 0.3634));
  CHECK(expected_error(lambda, levels, CodedKind::kKeyBeforeRope) == doctest::Approx(2 * 1.5 + 0.1188 + 4 * 0.3634));
  CHECK(expected_error(lambda, levels, CodedKind::kValue) ==
        doctest::Approx(2 * (1 + kAlikeError) + 0.1563 + 4 * 0.5368));
  // Equal steps s of two levels: +-s / 2 leaves 1 - s m + s^2 / 4 and, of the product, 1 - s m / 2, where m = E |y|.
  const double m = std::sqrt(2 / M_PI);
  for (const auto& [kind, alike] : {std::pair{0U, 0.0}, {1U, 0.0}, {2U, kAlikeError}}) {
    const double step = 2 * m * (1 + alike) / (1 + alike * m * m), product = 1 - step * m / 2;
    CHECK(kCodedError[kind][1] ==
          doctest::Approx(1 - step * m + step * step / 4 + alike * product * product).epsilon(1e-3));
  }
}

TEST_CASE("a head that hardly matters keeps one bit of its strongest block, and blocks without energy get none") {
  const std::vector<CodedSpectrum> uneven{spectrum(0, {1, 1}), spectrum(3, {1e-12, 2e-12})};
  const auto plans = plan_levels(uneven, 2, CodedScope::kModel);  // four bits in all
  CHECK(block_levels(plans[0]) == std::vector<int>{4, 2});
  CHECK(block_levels(plans[1]) == std::vector<int>{2, 1});
  CHECK(plans[1].order[0] == 8);
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
