// SPDX-License-Identifier: MIT
// Statistics of parts of the data against those of the whole.
#include <doctest/doctest.h>

#include <cmath>

#include "fit/coded_data.hpp"
#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

constexpr int kDim = 8;

test::MemoryChunk sequence_of(int tokens, unsigned seed) {
  const auto rows = [&](int heads, unsigned own, float offset) {
    std::vector<float> values = test::gaussian_floats(static_cast<std::size_t>(tokens * heads * kDim), seed + own);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = values[i] * static_cast<float>(std::pow(0.7, i % kDim)) + offset;
    }
    return Tensor::from({tokens, heads, kDim}, std::span<const float>(values));
  };
  return {rows(4, 0, 0), rows(2, 1, 2), rows(2, 2, 0), {{0, tokens}}};
}

ErrorCost cost_of(double size) {
  ErrorCost cost{MatrixStack(2, kDim), MatrixStack(2, kDim)};
  for (MatrixStack* side : {&cost.key, &cost.value}) {
    for (int head = 0; head < 2; ++head) {
      for (std::size_t i = 0; i < kDim; ++i) (*side)[head][i * (kDim + 1)] = size;
    }
  }
  return cost;
}

/// Of one layer; cost: what an error costs the model, 0: nobody asked.
CodedData coded_part(const std::vector<test::MemoryChunk>& sequences, const std::string& hash, double cost,
                     double damage = 0.1) {
  test::MemorySource source({{2, sequences}});
  CodedOptions options{.windows = {4, 16}, .sample_rows = 200};
  options.recipe = {{"plain_part", 0.3}, {"sample_rows", 200}, {"damage", "x"}, {"damage_tokens", 10}};
  Status silent;
  std::map<int, ErrorCost> costs;
  if (cost > 0) costs[2] = cost_of(cost);
  const auto backend = test::make_test_backend();
  const auto measure = [&](const CodedSet&) { return CodedDamage{damage, 2 * damage}; };
  CodedData data = take_coded_data(source, options, costs, measure, nullptr, *backend, silent);
  std::int64_t tokens = 0;
  for (const test::MemoryChunk& chunk : sequences) tokens += chunk.q.shape[0];
  data.data = {{hash, tokens, std::ssize(sequences), {}}};
  return data;
}

void check_close(const std::vector<double>& one, const std::vector<double>& other) {
  REQUIRE(one.size() == other.size());
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i) {
    largest = std::max(largest, std::abs(other[i])), difference = std::max(difference, std::abs(one[i] - other[i]));
  }
  CHECK(difference < 1e-12 * largest);
}

const std::string kFirst(64, 'a'), kSecond(64, 'b'), kAll(64, 'c');

}  // namespace

TEST_CASE("sums of parts are those of the whole, and parts count by their tokens") {
  const test::MemoryChunk a = sequence_of(400, 1), b = sequence_of(800, 9);
  const CodedData whole = coded_part({a, b}, kAll, 1);
  // Whichever comes first.
  const CodedData sum = merge_coded_data({{"b", coded_part({b}, kSecond, 4)}, {"a", coded_part({a}, kFirst, 1)}});
  REQUIRE(sum.data.size() == 2);
  CHECK(sum.data[0].data_sha256 == kFirst);
  CHECK(sum.recipe["damage_tokens"] == 20);
  const CodedLayerData &one = sum.layers.front(), &other = whole.layers.front();
  for (const Moment name : {Moment::kQqt, Moment::kVtv}) {
    check_close(one.sums.first.sums.at(name).sums.data, other.sums.first.sums.at(name).sums.data);
    check_close(one.sums.first.sums.at(name).total, other.sums.first.sums.at(name).total);
  }
  const FisherSums &fisher = *one.sums.first.fisher, &expected = *other.sums.first.fisher;
  check_close(fisher.key.data, expected.key.data), check_close(fisher.query.data, expected.query.data);
  check_close(fisher.value.data, expected.value.data), check_close(fisher.key_sum, expected.key_sum);
  CHECK(one.cost->key.data.front() == doctest::Approx((400 * 1 + 800 * 4) / 1200.0));
  CHECK(one.cost->value.data.back() == one.cost->key.data.front());
  // Of both parts every sixth row, as of the whole: 67 of the first, and 133 of the second.
  CHECK(one.key_rows[1].size() == 200 * kDim);
  CHECK(other.key_rows[1].size() == 200 * kDim);
  CHECK(one.value_rows[0].size() == 200 * kDim);
  const auto holds = [&](const test::MemoryChunk& chunk, std::size_t row) {
    const std::span<const float> all = chunk.k.values<float>();
    const auto first = one.key_rows[0].begin() + static_cast<std::ptrdiff_t>(row * kDim);
    for (std::size_t t = 0; t < all.size(); t += 2 * kDim) {
      if (std::equal(first, first + kDim, all.begin() + static_cast<std::ptrdiff_t>(t))) return true;
    }
    return false;
  };
  CHECK(holds(a, 66));
  CHECK(holds(b, 67));
  CHECK(holds(b, 199));
}

TEST_CASE("a set of the sum of statistics is fitted, and its damage is the mean of the parts'") {
  const test::MemoryChunk a = sequence_of(400, 1), b = sequence_of(800, 9);
  const test::TemporaryFolder folder;
  const CodedData one = coded_part({a}, kFirst, 0, 0.1), two = coded_part({b}, kSecond, 0, 0.4);
  write_coded_data(folder / "one", one), write_coded_data(folder / "two", two);
  const CodedData sum = read_coded_data({folder / "two", folder / "one"});
  CHECK(sum.layers.front().damage->key == doctest::Approx(0.3));
  CHECK(sum.layers.front().damage->value == doctest::Approx(0.6));
  const CodedSet set = fit_coded(sum, 3, CodedScope::kModel, *test::make_test_backend());
  CHECK(set.calibration.tokens == 1200);
  // A sum can be added to further parts.
  write_coded_data(folder / "sum", sum);
  write_coded_data(folder / "three", coded_part({sequence_of(100, 30)}, kAll, 0));
  const CodedData all = read_coded_data({folder / "three", folder / "sum"});
  CHECK(all.data.size() == 3);
  CHECK(all.layers.front().sums.first.sums.at(Moment::kVtv).total.front() == 1300);
  CHECK_ERROR((void)read_coded_data({folder / "sum", folder / "one"}), DataError, "the same data twice");
}

TEST_CASE("statistics that do not belong together are refused by what differs") {
  const test::MemoryChunk a = sequence_of(100, 1);
  const auto refused = [&](const char* words, const auto& change) {
    CodedData one = coded_part({a}, kFirst, 1), two = coded_part({a}, kSecond, 1);
    change(two);
    CHECK_ERROR((void)merge_coded_data({{"one", one}, {"two", two}}), DataError, words);
  };
  refused("different models", [](CodedData& data) { data.model.id = "other"; });
  refused("different windows", [](CodedData& data) { data.windows.sink = 5; });
  refused("in other ways: plain_part differ", [](CodedData& data) { data.recipe["plain_part"] = 0.1; });
  refused("different layers", [](CodedData& data) { data.layers.front().sums.layer_id = 7; });
  refused("different layers", [](CodedData& data) { data.layers.front().cost.reset(); });
  refused("different layers", [](CodedData& data) { data.layers.front().centred = false; });
}

}  // namespace oscar
