// SPDX-License-Identifier: MIT
// Codes and levels of four tokens of eight channels, derived by hand. Where a method turns rows first, the turned rows
// are given, and what becomes of them. Tolerances cover parameters in fp16.
#include "measure/peers/quantizers.hpp"
#include "rows.hpp"

namespace oscar {
namespace {

using test::check_close;
using test::reconstruction;
using test::Rows;
using test::turned;

Rows keys_of(const std::string& method, const Rows& x) { return reconstruction(peer_named(method).key, x); }
Rows values_of(const std::string& method, const Rows& x) { return reconstruction(peer_named(method).value, x); }

/// A method that turns rows, seen from behind the turn.
Rows turned_keys(const std::string& method, const Rows& y) { return turned(keys_of(method, turned(y))); }
Rows turned_values(const std::string& method, const Rows& y) { return turned(values_of(method, turned(y))); }

/// s by column: 1, 1, 1, 1, 3, 10, 1, 2.
const Rows kColumns{{0, 0, 0, 4.2F, -6, 10, -1, 2},
                    {1, 3, 0.5F, 5, 0, 40, -1, 2},
                    {2, 1.4F, 1.5F, 6, 1, 21, -1, 8},
                    {3, 1.6F, 3, 7.2F, 3, 30, 2, 2}};

/// s by row: 1, 0, 3, 10. Ties go to even codes.
const Rows kRows{{0, 0.5F, 1.5F, 3, 1, 2, 2.4F, 2.6F},
                 {7, 7, 7, 7, 7, 7, 7, 7},
                 {-6, 0, 1, 3, -2, -5, 2, -3},
                 {10, 40, 21, 30, 10, 10, 40, 40}};
const Rows kRowsByMinimum{
    {0, 0, 2, 3, 1, 2, 2, 3}, {7, 7, 7, 7, 7, 7, 7, 7}, {-6, 0, 0, 3, -3, -6, 3, -3}, {10, 40, 20, 30, 10, 10, 40, 40}};

}  // namespace

TEST_CASE("KIVI: keys by channel, values by token") {
  const Rows keys{{0, 0, 0, 4.2F, -6, 10, -1, 2},
                  {1, 3, 0, 5.2F, 0, 40, -1, 2},
                  {2, 1, 2, 6.2F, 0, 20, -1, 8},
                  {3, 2, 3, 7.2F, 3, 30, 2, 2}};
  for (const std::string method : {"kivi_g32", "kivi_g128"}) {
    check_close(keys_of(method, kColumns), keys, 3e-3);
    check_close(values_of(method, kRows), kRowsByMinimum, 1e-6);
  }
}

TEST_CASE("Kitty: the channels with the largest mean magnitude get 16 levels") {
  // Column 5 (mean 25.25): s = 2, 21 becomes 10 + 2 even(5.5) = 22.
  const Rows keys{{0, 0, 0, 4.2F, -6, 10, -1, 2},
                  {1, 3, 0, 5.2F, 0, 40, -1, 2},
                  {2, 1, 2, 6.2F, 0, 22, -1, 8},
                  {3, 2, 3, 7.2F, 3, 30, 2, 2}};
  check_close(keys_of("kitty", kColumns), keys, 3e-3);
  check_close(values_of("kitty", kRows), kRowsByMinimum, 1e-6);
}

TEST_CASE("OScaR: tokens divided by their norms 1, 2, 3, 10, then channels with whole zero points") {
  const Rows turned_rows{{0.6F, 0.8F, 0, 0, 0, 0, 0, 0},
                         {1.6F, -1.2F, 0, 0, 0, 0, 0, 0},
                         {0, 0, 1.8F, 2.4F, 0, 0, 0, 0},
                         {0, 0, 0, 6, -8, 0, 0, 0}};
  // Column 1 of the directions: 0.8, -0.6, 0, 0: s = 1.4 / 3, z = even(1.29) = 1, codes 3, 0, 1, 1.
  const float s0 = 0.8F / 3, s1 = 1.4F / 3;
  const Rows with_norms{{2 * s0, 2 * s1, 0, 0, 0, 0, 0, 0},
                        {2 * 0.8F, 2 * -s1, 0, 0, 0, 0, 0, 0},
                        {0, 0, 3 * 0.6F, 3 * 0.8F, 0, 0, 0, 0},
                        {0, 0, 0, 10 * 2 * s0, 10 * -0.8F, 0, 0, 0}};
  check_close(turned_keys("occam", turned_rows), with_norms, 5e-3);
}

TEST_CASE("whole zero points, one group per row") {
  const Rows rows{{0, 0.6F, 1.4F, 3, 1, 2, 2.4F, 2.6F},
                  {2, 5, 5, 5, 5, 5, 5, 5},
                  {-6, 0, 1, 3, -2, -5, 2, -3},
                  {0, 0, 0, 0, 0, 0, 0, 0}};
  // s = 1, 1, 3; z = 0, -2, 2.
  Rows found{
      {0, 1, 1, 3, 1, 2, 2, 3}, {2, 5, 5, 5, 5, 5, 5, 5}, {-6, 0, 0, 3, -3, -6, 3, -3}, {0, 0, 0, 0, 0, 0, 0, 0}};
  check_close(turned_keys("rotatekv", rows), found, 1e-5);
  check_close(turned_values("rotatekv", rows), found, 1e-5);
  check_close(turned_values("quarot", rows), found, 1e-5);
  // QuaRot's range of keys contains 0: row 1 has s = 5 / 3, codes 1 and 3.
  found[1] = {5.0F / 3, 5, 5, 5, 5, 5, 5, 5};
  check_close(turned_keys("quarot", rows), found, 2e-3);
}

TEST_CASE("a shifted tie rounds another way") {
  // Range -1 to 2: s = 1, z = 1. 0.5: even(0.5) + 1 = 1, but even(1.5) = 2.
  std::vector<float> group{-1, 2, 0.5F};
  methods::Affine{.zero = methods::ZeroPoint::kInteger}(group);
  CHECK(group == std::vector<float>{-1, 2, 0});
  group = {-1, 2, 0.5F};
  methods::Affine{.zero = methods::ZeroPoint::kIntegerShifted}(group);
  CHECK(group == std::vector<float>{-1, 2, 1});
}

TEST_CASE("OptR: the mean of the history leaves before the Hadamard and comes back") {
  // Rows 1 and 3 mirror 0 and 2, so that the mean is what is added here. s = 2, 2, 1, 1.
  const Rows rows{{-3, 3, -2.5F, -1.4F, 0.3F, 1.4F, 2.5F, -0.4F},
                  {3, -3, 2.5F, 1.4F, -0.3F, -1.4F, -2.5F, 0.4F},
                  {0, 3, 1.2F, 1.8F, 2.2F, 2.8F, 0.3F, 0.6F},
                  {0, -3, -1.2F, -1.8F, -2.2F, -2.8F, -0.3F, -0.6F}};
  const Rows found{{-3, 3, -3, -1, 1, 1, 3, -1},
                   {3, -3, 3, 1, -1, -1, -3, 1},
                   {0, 3, 1, 2, 2, 3, 0, 1},
                   {0, -3, -1, -2, -2, -3, 0, -1}};
  const auto shifted = [](Rows x) {
    for (auto& row : x) {
      for (std::size_t j = 0; j < row.size(); ++j) row[j] += 50 * static_cast<float>(j);
    }
    return x;
  };
  check_close(keys_of("optr_centred", shifted(turned(rows))), shifted(turned(found)), 1e-3);
  check_close(turned_values("optr_centred", rows), found, 1e-5);
}

TEST_CASE("TurboQuant's values: half a step goes up") {
  const Rows rows{{0, 7, 2.5F, 1.4F, 3.6F, 5, 6, 1},
                  {-7, 7, -6.1F, 0.9F, 2.9F, -5, 1, 3},
                  {4, 4, 4, 4, 4, 4, 4, 4},
                  {0, 15, 0.9F, 14, 2, 5, 8, 11}};
  const Rows three_bits{{0, 7, 3, 1, 4, 5, 6, 1},
                        {-7, 7, -7, 1, 3, -5, 1, 3},
                        {4, 4, 4, 4, 4, 4, 4, 4},
                        {0, 15, 0, 15, 15.0F / 7, 30.0F / 7, 60.0F / 7, 75.0F / 7}};
  check_close(values_of("turboquant_k3v3", rows), three_bits, 6e-3);
}

TEST_CASE("llama.cpp's blocks") {
  // m = -8, d = 1; m = 8, d = -1: 8 has a code, -8 has none; q8_0: 127 steps.
  check_close(keys_of("q4_0", {{-8, 7.4F, 8, 0.4F, 0.6F, -3, 2, 1}}), {{-8, 7, 7, 0, 1, -3, 2, 1}}, 1e-6);
  check_close(keys_of("q4_0", {{8, -7.4F, -8, 1, 2, 3, 0.6F, 0}}), {{8, -7, -7, 1, 2, 3, 1, 0}}, 1e-6);
  // Eight channels are not turned: 64 does not divide them.
  check_close(values_of("q4_0_rot", {{-8, 7.4F, 8, 0.4F, 0.6F, -3, 2, 1}}), {{-8, 7, 7, 0, 1, -3, 2, 1}}, 1e-6);
  check_close(keys_of("q8_0", {{-127, 126.4F, 0.5F, -0.5F, 1.4F, 3, 99.6F, 0}}), {{-127, 126, 1, -1, 1, 3, 100, 0}},
              1e-6);
}

TEST_CASE("FP8 with scale 1: ties to even, subnormals, saturation") {
  const Rows rows{{1.0625F, 1.1F, 500, 0.001F, -17, 300, 0.0009F, 0},
                  {-1.0625F, 1.1875F, -1e9F, 19, 448, -464, 3.3F, -0.3F},
                  {1, 2, 4, 8, 16, 32, 64, 128},
                  {-1.875F, 1.9375F, 15, 15.5F, 240, 248, 0.0156F, 0.017F}};
  const Rows found{{1, 1.125F, 448, 0.001953125F, -16, 288, 0, 0},
                   {-1, 1.25F, -448, 20, 448, -448, 3.25F, -0.3125F},
                   {1, 2, 4, 8, 16, 32, 64, 128},
                   {-1.875F, 2, 15, 16, 240, 256, 0.015625F, 0.017578125F}};
  check_close(keys_of("fp8", rows), found, 0);
}

}  // namespace oscar
