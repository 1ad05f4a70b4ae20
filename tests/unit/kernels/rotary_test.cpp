// SPDX-License-Identifier: MIT
#include "kernels/rotary.hpp"

#include <doctest/doctest.h>

#include <cmath>

#include "base/errors.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {

TEST_CASE("what is stored of keys by hand: fast pairs as they stand, others turned back by the middle of a block") {
  CHECK((turn_anchor(0) == 128 && turn_anchor(255) == 128 && turn_anchor(256) == 384));
  Rotary rotary{.pairs = {0, 1, 2, 3}, .frequency = {0.5F, kFastFrequency}, .far_frequency = {}};
  CHECK((rotary.is_fast(0) && !rotary.is_fast(1)));
  rotary.far_frequency = {0, 1.01F * kFastFrequency}, rotary.near_context = 9;
  CHECK((rotary.is_fast(0) && rotary.is_fast(1)));
  rotary.far_frequency.clear(), rotary.near_context = 0;
  const std::vector<double> mean{1, 2, 3, 4};
  const std::vector<float> keys{1, 2, 5, 6, 4, 2, 5, 6};  // at positions 255 and 256
  std::vector<float> rows = keys;
  turn_stored(rotary, Turn::kBack, mean, rows, 1, 255);
  const auto near = [](double x) { return doctest::Approx(x).epsilon(1e-5); };
  for (const std::size_t t : {0, 1}) {
    const double fast = 0.5 * (t == 0 ? 255 : 256), slow = kFastFrequency * (t == 0 ? 128 : 384);
    CHECK(rows[4 * t] == near(keys[4 * t] - (std::cos(fast) - 2 * std::sin(fast))));
    CHECK(rows[4 * t + 1] == near(2 - (2 * std::cos(fast) + std::sin(fast))));
    CHECK(rows[4 * t + 2] == near(5 * std::cos(slow) + 6 * std::sin(slow) - 3));
    CHECK(rows[4 * t + 3] == near(6 * std::cos(slow) - 5 * std::sin(slow) - 4));
  }
  turn_stored(rotary, Turn::kForth, mean, rows, 1, 255);
  for (std::size_t i = 0; i < keys.size(); ++i) CHECK(rows[i] == near(keys[i]));
}

TEST_CASE("RoPE by hand: position 1 of two pairs turns by 1 and by 0.1, and back") {
  Rotary rotary{.pairs = rotary_pairs(6, 4, false), .frequency = {1, 0.1F, 0}, .far_frequency = {}};
  std::vector<float> rows{9, 9, 9, 9, 9, 9, 1, 2, 0, 3, 5, 7};  // positions 0 and 1; the last two channels do not turn
  const auto near = [](double x) { return doctest::Approx(x).epsilon(1e-6); };
  turn(rotary, Turn::kForth, rows, 1, 0);
  CHECK(std::vector<float>(rows.begin(), rows.begin() + 6) == std::vector<float>(6, 9));
  CHECK(rows[6] == near(std::cos(1.0)));
  CHECK(rows[7] == near(2 * std::cos(0.1) - 3 * std::sin(0.1)));
  CHECK(rows[8] == near(std::sin(1.0)));
  CHECK(rows[9] == near(3 * std::cos(0.1) + 2 * std::sin(0.1)));
  CHECK((rows[10] == 5 && rows[11] == 7));
  turn(rotary, Turn::kBack, rows, 1, 0);
  CHECK(rows[6] == near(1));
  CHECK(rows[9] == near(3));
}

TEST_CASE("pairs are halves of what turns, or neighbours, and every channel has one") {
  CHECK(rotary_pairs(8, 4, false) == std::vector<int>{0, 2, 1, 3, 4, 5, 6, 7});
  CHECK(rotary_pairs(6, 4, true) == std::vector<int>{0, 1, 2, 3, 4, 5});
  const Rotary plain = plain_rotary(10000, 4);
  CHECK(plain.frequency == std::vector<float>{1, 0.01F});
}

TEST_CASE("texts beyond the near context turn by the far frequencies, from their first token on") {
  Rotary rotary = plain_rotary(100, 2);
  rotary.far_frequency = {0.5F}, rotary.near_context = 4;
  std::vector<float> near{1, 0, 1, 0}, far{1, 0, 1, 0};
  turn(rotary, Turn::kForth, near, 1, 2);  // ends at position 4
  turn(rotary, Turn::kForth, far, 1, 3);
  CHECK(near[0] == doctest::Approx(std::cos(2.0)));
  CHECK(far[0] == doctest::Approx(std::cos(1.5)));
}

TEST_CASE("a score depends on distance alone: rows may be read at other positions") {
  const Rotary rotary = plain_rotary(10000, 64);
  const std::vector<float> q = test::gaussian_floats(64, 1), k = test::gaussian_floats(64, 2);
  const auto score = [&](std::int64_t shift) {
    std::vector<float> a = q, b = k;
    turn(rotary, Turn::kForth, a, 1, shift + 900), turn(rotary, Turn::kForth, b, 1, shift);
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
    return sum;
  };
  CHECK(score(5000) == doctest::Approx(score(0)).epsilon(1e-3));  // angles are float32
}

TEST_CASE("how keys turn is read as it was written, and refused where it is no such thing") {
  Rotary rotary = plain_rotary(500000, 8);
  rotary.far_frequency = rotary.frequency, rotary.near_context = 4096;
  CHECK(rotary_from_json(to_json(rotary), "here") == rotary);
  for (const auto& [member, value] : {std::pair<const char*, Json>{"frequency", {1, 2}},
                                      {"far_frequency", {1}},
                                      {"fast_frequency", 0.5},
                                      {"turn_block", 128},
                                      {"pairs", {{0, 1}, {2, 3}, {4, 5}, {6, 6}}},
                                      {"pairs", {{0, 1}, {2, 3}, {4, 5}, {6, 8}}}}) {
    Json json = to_json(rotary);
    json[member] = value;
    CHECK_THROWS_AS((void)rotary_from_json(json, "here"), DataError);
  }
}

}  // namespace oscar
