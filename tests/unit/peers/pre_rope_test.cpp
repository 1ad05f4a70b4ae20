// SPDX-License-Identifier: MIT
// Methods that quantise keys before RoPE and learn from calibration text.
#include "peers/rope.hpp"
#include "rows.hpp"

namespace oscar {
namespace {

using test::check_close;
using test::reconstruction;
using test::Rows;

/// 256 channels in two heads of 128 and four tokens: even channels hold `small`, odd ones `large`, plus the token's
/// number times `step`.
std::vector<float> two_kinds(float small, float large, float step) {
  std::vector<float> rows(std::size_t{4} * 256);
  for (std::size_t t = 0; t < 4; ++t) {
    for (std::size_t j = 0; j < 256; ++j) {
      rows[t * 256 + j] = (j % 2 == 0 ? small : large) + static_cast<float>(t) * (j % 2 == 0 ? 1 : step);
    }
  }
  return rows;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(double{a[i]} - b[i]));
  return largest;
}

}  // namespace

TEST_CASE("RoPE by hand: position 1 of two pairs with theta 100 turns by 1 and by 0.1") {
  std::vector<float> rows{9, 9, 9, 9, 9, 1, 2, 0, 3, 5};  // tokens 0 and 1, the fifth coordinate does not take part
  const History history{rows, 2, 1, 5, 0, {}};
  const auto near = [](double x) { return doctest::Approx(x).epsilon(1e-6); };

  methods::apply_rope(history, {100, 4}, false);

  CHECK(std::vector<float>(rows.begin(), rows.begin() + 5) == std::vector<float>{9, 9, 9, 9, 9});
  CHECK(rows[5] == near(std::cos(1.0)));
  CHECK(rows[6] == near(2 * std::cos(0.1) - 3 * std::sin(0.1)));
  CHECK(rows[7] == near(std::sin(1.0)));
  CHECK(rows[8] == near(3 * std::cos(0.1) + 2 * std::sin(0.1)));
  CHECK(rows[9] == 5);
  methods::apply_rope(history, {100, 4}, true);
  CHECK(rows[5] == near(1));
  CHECK(rows[8] == near(3));
}

TEST_CASE("keys are quantised as they were before RoPE") {
  const Rows before{{0, 1.3F, 2, 3, 0.6F, 1.1F, 2.2F, 2.4F},
                    {1, 4, 2, 2.8F, 0, 1, 3, 1.7F},
                    {5, 4.2F, 3, 2, 1, 0, -1, 1.4F},
                    {3, 0.2F, -3, 1.2F, 2.7F, 0, 1, 2}};
  const Rope rope{10000, 0};
  const auto embedded = [&](Rows x, std::size_t first = 0) {
    for (std::size_t t = 0; t < x.size(); ++t) {
      methods::apply_rope({x[t], 1, 1, 8, static_cast<std::int64_t>(first + t), {}}, rope, false);
    }
    return x;
  };
  const Rows last{before[2], before[3]};
  for (const SequenceMethod& method : sequence_methods()) {
    if (!method.before_rope) continue;
    CAPTURE(method.name);
    check_close(reconstruction(method.key, embedded(before), rope), embedded(reconstruction(method.key, before)), 1e-5);
    // A history of tokens 2 and 3 knows that they are.
    std::vector<float> rows;
    for (const auto& row : embedded(before)) rows.insert(rows.end(), row.begin(), row.end());
    const auto found = reconstruct(method.key, heads_view(rows, 4, 1, 8), {2, 4}, {rope, Precision::kExact, nullptr});
    const Rows expected = embedded(reconstruction(method.key, last), 2);
    check_close({{found.begin() + 16, found.begin() + 24}, {found.begin() + 24, found.end()}}, expected, 1e-5);
  }
}

TEST_CASE("RotateKV puts channels with like sums into one group") {
  // Turned rows whose groups hold one value each come back; a group of both kinds could not hold them.
  std::vector<float> rows = two_kinds(-100, 700.5F, 3);
  methods::hadamard({rows, 4, 256}, 256);
  const auto found = test::flat_reconstruction(test::method_named("rotatekv").key, rows, 2, 128);
  CHECK(largest_difference(found, rows) < 0.5);
}

TEST_CASE("SKVQ groups channels by their ranges") {
  // Minima that e4m3 holds: 0 to 3, and 96 to 120.
  const std::vector<float> rows = two_kinds(0, 96, 8);
  const auto found = test::flat_reconstruction(test::method_named("skvq").key, rows, 2, 128);
  CHECK(largest_difference(found, rows) < 1e-4);
}

TEST_CASE("SKVQ by hand: codes with exact parameters, read with e4m3") {
  const Rows rows{{0, 0.3F, 1.2F, 3, 1, 2, 2.2F, 2.8F},
                  {0, 10, 20, 30, 10, 20, 30, 0},
                  {0, 1.1F, 2.2F, 3.3F, 0, 1.1F, 2.2F, 3.3F},
                  {-1.1F, -0.1F, 0.9F, 1.9F, -1.1F, -0.1F, 0.9F, 1.9F}};
  // Scales 1, 10, 1.1 (read as 1.125), 1; minimum -1.1 (read as -1.125). Any other clip factor is worse.
  const Rows found{{0, 0, 1, 3, 1, 2, 2, 3},
                   {0, 10, 20, 30, 10, 20, 30, 0},
                   {0, 1.125F, 2.25F, 3.375F, 0, 1.125F, 2.25F, 3.375F},
                   {-1.125F, -0.125F, 0.875F, 1.875F, -1.125F, -0.125F, 0.875F, 1.875F}};
  check_close(reconstruction(test::method_named("skvq").key, rows), found, 1e-6);
  check_close(reconstruction(test::method_named("skvq").value, rows), found, 1e-6);
}

TEST_CASE("KVQuant by hand: k-means finds +-1 and +-0.3 among +-1, +-0.4, +-0.2") {
  // Keys: column j spans j -+ (j + 1). Values: row t likewise.
  Rows keys(4, std::vector<float>(8)), expected_keys = keys, values = keys, expected_values = keys;
  const std::vector<float> wide{-1, 0.4F, 1, -0.4F}, narrow{0.2F, 1, -0.2F, -1};
  const std::vector<float> row{-1, 0.4F, 1, -0.4F, 0.2F, 1, -0.2F, -1};
  const auto level = [](float x) { return std::abs(x) == 1 ? x : std::copysign(0.3F, x); };
  for (std::size_t t = 0; t < 4; ++t) {
    for (std::size_t j = 0; j < 8; ++j) {
      const auto column = static_cast<float>(j), token = static_cast<float>(t);
      const float x = j % 2 == 0 ? wide[t] : narrow[t];
      keys[t][j] = column + (column + 1) * x;
      expected_keys[t][j] = column + (column + 1) * level(x);
      values[t][j] = token + (token + 1) * row[j];
      expected_values[t][j] = token + (token + 1) * level(row[j]);
    }
  }
  check_close(reconstruction(test::method_named("kvquant_nuq2").key, keys), expected_keys, 1e-5);
  check_close(reconstruction(test::method_named("kvquant_nuq2").value, values), expected_values, 1e-5);
}

TEST_CASE("KVQuant keeps what lies outside the percentiles") {
  // 201 tokens of one channel: rank 199 is the upper end, rank 1 the lower one.
  Rows keys(201, std::vector<float>(1));
  for (std::size_t t = 0; t < keys.size(); ++t) keys[t][0] = t % 2 == 0 ? 1 : -1;
  keys[17][0] = 1000, keys[18][0] = -3000;
  check_close(reconstruction(test::method_named("kvquant_nuq2").key, keys), keys, 0);
}

}  // namespace oscar
