// SPDX-License-Identifier: MIT
// The arithmetic of one pair of channels that the kernels of oscar/coded_pack.h share with the host, against turn().
#include "kernels/coded_turn.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <stdexcept>
#include <utility>

#include "kernels/rotary.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

/// A layer of two heads: how it turns, bases of pairs whose coordinates are dealt over the row, and a mean.
struct TurningLayer {
  static constexpr int kHeads = 2;
  Rotary rotary;
  std::vector<float> basis, inverse, mean;

  explicit TurningLayer(Rotary its) : rotary(std::move(its)) {
    const auto d = static_cast<std::size_t>(rotary.dim());
    const std::vector<float> random = test::gaussian_floats(kHeads * 2 * d, 3);
    basis.resize(kHeads * d * d), inverse.resize(kHeads * d * d), mean = test::gaussian_floats(kHeads * d, 4, 8);
    for (std::size_t head = 0; head < kHeads; ++head) {
      for (std::size_t p = 0; p < d / 2; ++p) {
        const float* const r = &random[head * 2 * d + 4 * p];
        const float m[2][2] = {{2 + r[0] / 4, r[1]}, {-r[1], 2 + r[2] / 4}};
        const float determinant = m[0][0] * m[1][1] - m[0][1] * m[1][0];
        const float back[2][2] = {{m[1][1] / determinant, -m[0][1] / determinant},
                                  {-m[1][0] / determinant, m[0][0] / determinant}};
        for (std::size_t i = 0; i < 2; ++i) {
          for (std::size_t c = 0; c < 2; ++c) {
            const auto channel = [&](std::size_t n) { return static_cast<std::size_t>(rotary.pairs[2 * p + n]); };
            const auto coordinate = [&](std::size_t n) {
              return ((2 * p + n) * 7 + head) % d;
            };  // d is no multiple of 7
            basis[(head * d + channel(i)) * d + coordinate(c)] = m[i][c];
            inverse[(head * d + coordinate(c)) * d + channel(i)] = back[c][i];
          }
        }
      }
    }
  }
  [[nodiscard]] oscar_coded_turn c_turn() const {
    return {rotary.dim(),
            kHeads,
            rotary.pairs.data(),
            rotary.frequency.data(),
            rotary.far_frequency.empty() ? nullptr : rotary.far_frequency.data(),
            basis.data(),
            inverse.data(),
            mean.data()};
  }
};

}  // namespace

TEST_CASE("a packed row of each kind of RoPE becomes the key that turn() makes of it, and the key that row") {
  for (const int dim : {64, 128, 256}) {
    for (const bool interleaved : {false, true}) {
      Rotary partial = plain_rotary(10000, dim);
      partial.pairs = rotary_pairs(dim, dim / 2, interleaved);  // half of the channels
      for (std::size_t p = partial.frequency.size() / 2; p < partial.frequency.size(); ++p) partial.frequency[p] = 0;
      partial.far_frequency = partial.frequency, partial.near_context = 4096;
      for (float& f : partial.far_frequency) f /= 3;
      const TurningLayer layer(partial);
      const std::vector<CodedTurnPair> pairs = coded_turn_pairs(layer.c_turn());
      REQUIRE(pairs.size() == static_cast<std::size_t>(dim));
      const auto d = static_cast<std::size_t>(dim);
      const std::vector<float> y = test::gaussian_floats(2 * d, 9);
      const std::vector<double> means(layer.mean.begin(), layer.mean.end());
      for (const int position : {0, 1, 4095, 4096, 131071}) {
        std::vector<float> expected(2 * d);
        for (std::size_t i = 0; i < 2 * d * d; ++i) expected[i / d / d * d + i % d] += y[i / d] * layer.inverse[i];
        turn_stored(layer.rotary, Turn::kForth, means, expected, 2, position);
        for (std::size_t i = 0; i < pairs.size(); ++i) {
          const CodedTurnPair& pair = pairs[i];
          const std::size_t head = i / (d / 2) * d;
          const auto at = [&](std::int16_t n) { return head + static_cast<std::size_t>(n); };
          const PairValues stored{y[at(pair.coordinate[0])], y[at(pair.coordinate[1])]};
          const int is_far = position >= 4096 ? 1 : 0;
          const PairValues key = turned_pair(pair, stored, position, {nullptr, nullptr, is_far, is_far, 0});
          CHECK(key.first == doctest::Approx(expected[at(pair.channel[0])]).epsilon(1e-4));
          CHECK(key.second == doctest::Approx(expected[at(pair.channel[1])]).epsilon(1e-4));
          const int moved = position / 3;  // it was packed there, in a text that was not far
          const PairValues home = turned_pair(pair, stored, position - moved, {nullptr, nullptr, 0, 0, 0});
          const PairValues packed = unturned_pair(pair, home, position - moved, 0);
          const PairValues there = turned_pair(pair, packed, position, {nullptr, nullptr, is_far, 0, moved});
          // The key before RoPE is the same.
          const auto back = [&](std::int32_t at_position, int far, PairValues of) {
            const PairValues angle = cosine_and_sine(at_position, pair.frequency[far]);
            return turned_by({angle.first, -angle.second}, of.first, of.second);
          };
          const PairValues a = back(position - moved, 0, home), b = back(position, is_far, there);
          CHECK(std::hypot(a.first - b.first, a.second - b.second) < 1e-4 * (1 + std::hypot(a.first, a.second)) * 8);
          const PairValues again = unturned_pair(pair, key, position, is_far);
          CHECK(again.first == doctest::Approx(stored.first).epsilon(1e-4));
          CHECK(again.second == doctest::Approx(stored.second).epsilon(1e-4));
        }
      }
    }
  }
}

TEST_CASE("a basis that mixes pairs is refused, and so are pairs that have a channel twice") {
  TurningLayer layer(plain_rotary(10000, 64));
  layer.inverse[0 * 64 + 5] = 1;
  CHECK_THROWS_AS((void)coded_turn_pairs(layer.c_turn()), std::invalid_argument);
  TurningLayer twice(plain_rotary(10000, 64));
  twice.rotary.pairs[1] = 0;
  CHECK_THROWS_AS((void)coded_turn_pairs(twice.c_turn()), std::invalid_argument);
}

}  // namespace oscar
