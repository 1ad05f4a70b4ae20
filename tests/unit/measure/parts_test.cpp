// SPDX-License-Identifier: MIT
// What methods are put together from, and where a history begins and ends.
#include "base/threads.hpp"
#include "measure/peers/quantizers.hpp"
#include "rows.hpp"

namespace oscar {

TEST_CASE("Lloyd and Max's levels for N(0, 1)") {
  const auto near = [](double x) { return doctest::Approx(x).epsilon(2e-4); };
  CHECK(methods::gaussian_codebook(1).levels[1] == near(0.7979));
  const methods::Codebook two = methods::gaussian_codebook(2);
  CHECK(two.levels[2] == near(0.4528));
  CHECK(two.levels[3] == near(1.5104));
  CHECK(two.bounds[2] == near(0.9816));
  CHECK(methods::gaussian_codebook(3).levels[7] == near(2.1519));
  CHECK(methods::gaussian_codebook(4).levels[15] == near(2.7326));
  CHECK(methods::gaussian_codebook(4).bounds[8] == near(0.2582));
}

TEST_CASE("a codebook: a value on a bound takes the upper level") {
  std::vector<float> values{-1, -1.01F, 9};
  methods::Codebook{{-2, 0, 1}, {-1, 0.5F}}.take_nearest(values);
  CHECK(values == std::vector<float>{0, -2, 1});
}

TEST_CASE("e2m1: ties to even, saturation") {
  const std::vector<std::pair<float, float>> pairs{{0.25F, 0}, {0.75F, 1}, {1.25F, 1}, {1.75F, 2}, {2.5F, 2},
                                                   {3.5F, 4},  {5, 4},     {5.1F, 6},  {100, 6},   {-0.3F, -0.5F}};
  for (const auto& [x, rounded] : pairs) CHECK(methods::round_to_e2m1(x) == rounded);
}

TEST_CASE("a Hadamard of blocks, and columns in another order and back") {
  std::vector<float> rows{1, 2, 3, 4, 5, 6};
  const float r = std::sqrt(0.5F);
  methods::hadamard({rows, 1, 6}, 4);  // 4 does not divide 6: blocks of 2
  for (const auto& [i, expected] : std::vector<std::pair<std::size_t, float>>{{0, 3}, {1, -1}, {4, 11}, {5, -1}}) {
    CHECK(rows[i] == doctest::Approx(expected * r));
  }
  std::vector<float> columns{10, 20, 30};
  methods::take_columns({columns, 1, 3}, std::vector<std::size_t>{2, 0, 1});
  CHECK(columns == std::vector<float>{30, 10, 20});
  methods::put_columns({columns, 1, 3}, std::vector<std::size_t>{2, 0, 1});
  CHECK(columns == std::vector<float>{10, 20, 30});
}

TEST_CASE("llama.cpp turns keys by 128 channels and values by 64") {
  // Behind a turn by 128 the two values are alone in their blocks and come back; by 64 they share blocks.
  test::Rows row(1, std::vector<float>(128));
  row[0][3] = 8, row[0][64 + 5] = 3.3F;
  row = test::turned(row);
  const Peer& method = peer_named("q4_0_rot");
  const auto error = [&](const SideMethod& side) {
    double sum = 0;
    const test::Rows found = test::reconstruction(side, row);
    for (std::size_t j = 0; j < 128; ++j) sum += std::pow(found[0][j] - row[0][j], 2);
    return std::sqrt(sum);
  };
  CHECK(error(method.key) < 1e-2);
  CHECK(error(method.value) > 0.2);
}

TEST_CASE("groups of tokens start after the sink, and windows are left alone") {
  // Tokens 5 to 36 lie in {0, 3}, 37 to 39 in {100, 103}: one code each if the first group starts at token 5.
  std::vector<float> rows(40);
  for (std::size_t t = 0; t < rows.size(); ++t) rows[t] = (t < 37 ? 0.0F : 100.0F) + (t % 2 == 0 ? 3.0F : 0.0F);
  rows[2] = 1e6F + 64, rows[4] = -77.25F;
  const auto found = reconstruct(peer_named("kivi_g32").key, heads_view(rows, 40, 1, 1), {5, 40},
                                 {std::nullopt, Precision::kExact, nullptr});
  CHECK(found == rows);
  // Had they started at token 0, a group would hold both kinds.
  const auto shifted = reconstruct(peer_named("kivi_g32").key, heads_view(rows, 40, 1, 1), {6, 40},
                                   {std::nullopt, Precision::kExact, nullptr});
  CHECK(shifted != rows);
}

TEST_CASE("keys are quantised as they were before RoPE") {
  const test::Rows before{{0, 1.3F, 2, 3, 0.6F, 1.1F, 2.2F, 2.4F},
                          {1, 4, 2, 2.8F, 0, 1, 3, 1.7F},
                          {5, 4.2F, 3, 2, 1, 0, -1, 1.4F},
                          {3, 0.2F, -3, 1.2F, 2.7F, 0, 1, 2}};
  const Rotary rope = plain_rotary(10000, 8);
  const auto embedded = [&](test::Rows x, std::size_t first = 0) {
    for (std::size_t t = 0; t < x.size(); ++t) {
      turn(rope, Turn::kForth, x[t], 1, static_cast<std::int64_t>(first + t));
    }
    return x;
  };
  const test::Rows last{before[2], before[3]};
  const SideMethod& keys = peer_named("rotatekv").key;
  test::check_close(test::reconstruction(keys, embedded(before), rope), embedded(test::reconstruction(keys, before)),
                    1e-5);
  // A history of tokens 2 and 3 knows that they are.
  std::vector<float> rows;
  for (const auto& row : embedded(before)) rows.insert(rows.end(), row.begin(), row.end());
  const auto found = reconstruct(keys, heads_view(rows, 4, 1, 8), {2, 4}, {rope, Precision::kExact, nullptr});
  const test::Rows expected = embedded(test::reconstruction(keys, last), 2);
  test::check_close({{found.begin() + 16, found.begin() + 24}, {found.begin() + 24, found.end()}}, expected, 1e-5);
}

TEST_CASE("RotateKV puts channels with like sums into one group") {
  // 256 channels in two heads and four tokens. Turned rows whose groups hold one value each come back; a group of both
  // kinds, even and odd channels, could not hold them.
  std::vector<float> rows(std::size_t{4} * 256);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = i % 2 == 0 ? -100 + static_cast<float>(i / 256) : 700.5F + static_cast<float>(i / 256 * 3);
  }
  methods::hadamard({rows, 4, 256}, 256);
  const auto found = test::flat_reconstruction(peer_named("rotatekv").key, rows, 2, 128);
  for (std::size_t i = 0; i < rows.size(); ++i) CHECK(std::abs(found[i] - rows[i]) < 0.5);
}

TEST_CASE("serving rounds rows to bfloat16, an empty history is none") {
  const std::vector<float> rows{1.001F, 2.003F};
  const SideMethod& side = peer_named("q8_0").key;
  const auto stored = reconstruct(side, heads_view(rows, 1, 1, 2), {1, 1}, {});
  CHECK(stored == std::vector<float>{1, 2});
  const auto read = reconstruct(side, heads_view(rows, 1, 1, 2), {0, 1}, {});
  for (const float x : read) CHECK(x == round_to_bf16(x));
}

TEST_CASE("blocks that do not divide a row have their scales all the same") {
  for (const auto& [name, bits] : {std::pair{"q8_0", 8 + 2 * 16.0 / 40},
                                   {"q4_0", 4 + 2 * 16.0 / 40},
                                   {"nvfp4", 4 + 3 * 8.0 / 40},
                                   {"int8_per_token_head", 8 + 32.0 / 40}}) {
    CAPTURE(name);
    CHECK(peer_named(name).key.bits({.head_dim = 40, .num_kv_heads = 1}).codes == doctest::Approx(bits));
  }
}

TEST_CASE("results do not depend on the number of threads") {
  std::vector<float> rows(std::size_t{300} * 2 * 64);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::sin(static_cast<float>(i * i % 1009));
  for (const Peer& method : test::decoding_peers()) {
    CAPTURE(method.name);
    set_num_threads(1);
    const auto one = test::flat_reconstruction(method.key, rows, 2, 64, plain_rotary(10000, 64));
    set_num_threads(5);
    CHECK(test::flat_reconstruction(method.key, rows, 2, 64, plain_rotary(10000, 64)) == one);
  }
  set_num_threads(0);
}

}  // namespace oscar
