// SPDX-License-Identifier: MIT
// Fits of the coded cache, and statistics of parts of the data against those of the whole.
#include <doctest/doctest.h>

#include <cmath>

#include "fit/fit.hpp"
#include "fit/take.hpp"
#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

constexpr int kQueryHeads = 4, kHeads = 2, kDim = 16;

/// A sequence. Channels fall off by a factor each, keys stand off zero.
test::MemoryChunk coded_sequence(int tokens, unsigned seed, int dim = kDim) {
  const auto rows = [&](int heads, unsigned own, double fall, float offset) {
    std::vector<float> values = test::gaussian_floats(static_cast<std::size_t>(tokens * heads * dim), seed + own);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto channel = static_cast<double>(i % static_cast<std::size_t>(dim));
      values[i] = values[i] * static_cast<float>(std::pow(fall, channel)) + offset;
    }
    return Tensor::from({tokens, heads, dim}, std::span<const float>(values));
  };
  return {rows(kQueryHeads, 0, 0.9, 0), rows(kHeads, 1, 0.7, 2), rows(kHeads, 2, 0.8, 0), {{0, tokens}}};
}

test::MemorySource coded_source(const std::vector<int>& layers, int dim = kDim) {
  std::map<int, std::vector<test::MemoryChunk>> chunks;
  for (const int id : layers) chunks[id].push_back(coded_sequence(400, static_cast<unsigned>(10 * id + 1), dim));
  return test::MemorySource(std::move(chunks));
}

Statistics taken_of(const TakeOptions& options, const MeasureDamage& measure, test::MemorySource source,
                    const ErrorCosts& costs = {}) {
  Status status;
  return take(source, options, costs, measure, nullptr, *test::make_test_backend(), status);
}

CodedPart fit_coded_part(const TakeOptions& options, const MeasureDamage& measure,
                         CodedScope scope = CodedScope::kModel) {
  return fit_coded(taken_of(options, measure, coded_source({0, 3})), 3, scope, *test::make_test_backend());
}

const TakeOptions kTakeOptions{
    .moments = {Moment::kFisher, Moment::kQqt, Moment::kVtv}, .windows = {4, 16}, .coded = true, .sample_rows = 200};

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
Statistics coded_part(const std::vector<test::MemoryChunk>& sequences, const std::string& hash, double cost,
                      double damage = 0.1) {
  TakeOptions options = kTakeOptions;
  options.recipe = {{"plain_part", 0.3}, {"sample_rows", 200}, {"damage", "x"}, {"damage_tokens", 10}};
  options.moments.insert(Moment::kSst);
  ErrorCosts costs;
  if (cost > 0) costs[2] = cost_of(cost);
  const auto measure = [&](const CodedPart&) { return CodedDamage{damage, 2 * damage}; };
  Statistics data = taken_of(options, measure, test::MemorySource({{2, sequences}}), costs);
  std::int64_t tokens = 0;
  for (const test::MemoryChunk& chunk : sequences) tokens += chunk.q.shape[0];
  data.data = {{hash, tokens, std::ssize(sequences), {}}};
  return data;
}

/// Through files.
Statistics merged(const std::vector<Statistics>& parts) {
  const test::TemporaryFolder folder;
  std::vector<std::filesystem::path> paths;
  for (const Statistics& part : parts) {
    paths.push_back(folder / std::to_string(paths.size()));
    write_statistics(paths.back(), part);
  }
  return read_statistics(paths);
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

TEST_CASE("a fit meets its budget, and what it writes can be read back") {
  const CodedPart set = fit_coded_part(kTakeOptions, {});
  REQUIRE(set.layers.size() == 2);
  CHECK(set.layers[1].layer_id == 3);
  CHECK(bits_of(set) <= 3);
  CHECK(bits_of(set) > 2.9);
  for (const CodedLayer& layer : set.layers) {
    for (const CodedSide* side : {&layer.key, &layer.value}) {
      CHECK(side->formats.size() == kHeads);
      for (int head = 0; head < kHeads; ++head) {
        const std::span<const double> write = side->transform.rotation[head],
                                      read = side->transform.read_rotation[head];
        for (std::size_t i = 0; i < kDim; ++i) {
          double own = 0;
          for (std::size_t c = 0; c < kDim; ++c) own += write[i * kDim + c] * read[i * kDim + c];
          CHECK(own == doctest::Approx(1).epsilon(1e-4));
        }
      }
    }
    // Keys have the mean of what is read, here about that of all.
    CHECK(layer.key.transform.mean[kDim - 1] == doctest::Approx(2).epsilon(0.01));
    CHECK(layer.value.transform.mean.empty());
  }
}

TEST_CASE("bits go where errors cost the model") {
  std::vector<double> trial_bits;
  const auto measure = [&](const CodedPart& trial) {
    REQUIRE(trial.layers.size() == 1);
    const CodedLayer& layer = trial.layers.front();
    for (const CodedSide* side : {&layer.key, &layer.value}) trial_bits.push_back(bits_of(*side));
    return layer.layer_id == 0 ? CodedDamage{0.001, 0.001} : CodedDamage{0.1, 0.001};
  };
  const CodedPart set = fit_coded_part(kTakeOptions, measure);
  // Damage is measured with two bits of code for every side, and a byte for each of two scales.
  for (const double bits : trial_bits) CHECK(bits == 3);
  CHECK(bits_of(set.layers[1].key) > bits_of(set.layers[1].value) + 0.9);
  CHECK(bits_of(set.layers[1].key) > bits_of(set.layers[0].key) + 0.9);
  // What two bits cost a tenth of with two bits costs less with more.
  CHECK(set.layers[1].key.damage < 0.05);
  CHECK(set.layers[1].key.damage > 0.001);
  CHECK(bits_of(set) <= 3);
  // Layers that share a budget of their own do not give theirs away.
  const CodedPart by_layer = fit_coded_part(kTakeOptions, measure, CodedScope::kLayer);
  for (const CodedLayer& layer : by_layer.layers) CHECK((bits_of(layer.key) + bits_of(layer.value)) / 2 == 3);
}

TEST_CASE("damage that is no number is refused by its layer") {
  const auto measure = [](const CodedPart& trial) {
    return CodedDamage{0.1, trial.layers.front().layer_id == 3 ? NAN : 0.1};
  };
  CHECK_ERROR((void)fit_coded_part(kTakeOptions, measure), NumericalError, "layer 3");
}

TEST_CASE("keys of layers that feel shifts are not centred") {
  TakeOptions options = kTakeOptions;
  options.uncentred = {3};
  const CodedPart set = fit_coded_part(options, {});
  CHECK(!set.layers[0].key.transform.mean.empty());
  CHECK(set.layers[1].key.transform.mean.empty());
}

TEST_CASE("data that cannot be coded is refused") {
  TakeOptions options = kTakeOptions;
  options.windows = {64, 512};
  CHECK_ERROR((void)fit_coded_part(options, {}), DataError, "");
  CHECK_ERROR((void)taken_of(kTakeOptions, {}, coded_source({0}, 12)), DataError,
              "heads of keys have 12 channels in layer 0, and the coded cache takes multiples of 8");
  const Statistics data = taken_of(kTakeOptions, {}, coded_source({0}));
  CHECK_ERROR((void)fit_coded(data, 0.5, CodedScope::kModel, *test::make_test_backend()), UsageError,
              "the scales of a row take 1");
}

TEST_CASE("sums of parts are those of the whole, and parts count by their tokens") {
  const test::MemoryChunk a = coded_sequence(400, 1), b = coded_sequence(800, 9);
  const Statistics whole = coded_part({a, b}, kAll, 1);
  // Whichever comes first.
  const Statistics sum = merged({coded_part({b}, kSecond, 4), coded_part({a}, kFirst, 1)});
  REQUIRE(sum.data.size() == 2);
  CHECK(sum.data[0].data_sha256 == kFirst);
  CHECK(sum.recipe["damage_tokens"] == 20);
  const LayerStatistics &one = sum.layers.front(), &other = whole.layers.front();
  for (const Moment name : {Moment::kQqt, Moment::kVtv}) {
    check_close(one.first.sums.at(name).sums.data, other.first.sums.at(name).sums.data);
    check_close(one.first.sums.at(name).total, other.first.sums.at(name).total);
  }
  const FisherSums &fisher = *one.first.fisher, &expected = *other.first.fisher;
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
  const test::MemoryChunk a = coded_sequence(400, 1), b = coded_sequence(800, 9);
  const test::TemporaryFolder folder;
  write_statistics(folder / "one", coded_part({a}, kFirst, 0, 0.1));
  write_statistics(folder / "two", coded_part({b}, kSecond, 0, 0.4));
  const Statistics sum = read_statistics({folder / "two", folder / "one"});
  CHECK(sum.layers.front().damage->key == doctest::Approx(0.3));
  CHECK(sum.layers.front().damage->value == doctest::Approx(0.6));
  const CodedPart set = fit_coded(sum, 3, CodedScope::kModel, *test::make_test_backend());
  CHECK(set.calibration.tokens == 1200);
  // A sum can be added to further parts.
  write_statistics(folder / "sum", sum);
  write_statistics(folder / "three", coded_part({coded_sequence(100, 30)}, kAll, 0));
  const Statistics all = read_statistics({folder / "three", folder / "sum"});
  CHECK(all.data.size() == 3);
  CHECK(all.layers.front().first.sums.at(Moment::kVtv).total.front() == 1300);
  CHECK_ERROR((void)read_statistics({folder / "sum", folder / "one"}), DataError, "the same data twice");
}

TEST_CASE("value moments by attention scores of parts are those of their rows, by the query moments of all") {
  // So few tokens that every row is kept.
  const test::MemoryChunk a = coded_sequence(120, 1), b = coded_sequence(70, 9);
  const Statistics whole = coded_part({a, b}, kAll, 1);
  const Statistics sum = merged({coded_part({a}, kFirst, 1), coded_part({b}, kSecond, 1)});
  REQUIRE(whole.layers.front().sst);
  CHECK_FALSE(sum.layers.front().sst);
  FitOptions options{.recipe = "oscar", .clip = "off", .windows = {4, 16}};
  Status status;
  const auto backend = test::make_test_backend();
  const SideTransform one = fit(sum, options, *backend, status).rotations.at(kRotationsName).layers[0].value;
  const SideTransform other = fit(whole, options, *backend, status).rotations.at(kRotationsName).layers[0].value;
  REQUIRE(one.covariance.data.size() == other.covariance.data.size());
  for (std::size_t i = 0; i < one.covariance.data.size(); ++i) {
    CHECK(one.covariance.data[i] == doctest::Approx(other.covariance.data[i]).epsilon(1e-5));
  }
}

TEST_CASE("statistics that do not belong together are refused by what differs") {
  const test::MemoryChunk a = coded_sequence(100, 1);
  const auto refused = [&](const char* words, const auto& change) {
    Statistics one = coded_part({a}, kFirst, 1), two = coded_part({a}, kSecond, 1);
    change(two);
    CHECK_ERROR((void)merged({one, two}), DataError, words);
  };
  refused("different models", [](Statistics& data) { data.model.id = "other"; });
  refused("different windows", [](Statistics& data) { data.windows.sink = 5; });
  refused("in other ways: plain_part differ", [](Statistics& data) { data.recipe["plain_part"] = 0.1; });
  refused("other samples for clip ratios", [](Statistics& data) { data.clip = SampleOptions{}; });
  refused("elsewhere of fisher fisher.value qqt vtv cost rows",
          [](Statistics& data) { data.layers.front().cost.reset(); });
  refused("rows uncentred", [](Statistics& data) { data.layers.front().centred = false; });
  refused("\"layer_2.key.rows\" is not finite", [](Statistics& data) { data.layers.front().key_rows[1][3] = NAN; });
  refused("another number of rows", [](Statistics& data) {
    for (auto& head : data.layers.front().value_rows) head.resize(head.size() - kDim);
  });
}

TEST_CASE("queries before RoPE beside what errors cost, which nothing reads, are refused") {
  Statistics data = coded_part({coded_sequence(100, 1)}, kAll, 1);
  LayerStatistics& layer = data.layers.front();
  layer.rotary = plain_rotary(1e4, kDim), layer.keys_before_rope = layer.key_rows;
  FisherSums& fisher = *layer.first.fisher;
  fisher.base_key = fisher.key, fisher.base_key_sum = fisher.key_sum;
  CHECK(merged({data}).layers.front().first.fisher->base_key.data == fisher.key.data);
  fisher.base_query = fisher.query;
  CHECK_ERROR((void)merged({data}), DataError, "layer_2.fisher.base_query\" is of no use beside what errors cost");
}

}  // namespace oscar
