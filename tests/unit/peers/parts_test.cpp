// SPDX-License-Identifier: MIT
// What methods are put together from, and where a history begins and ends.
#include "base/threads.hpp"
#include "peers/codebook.hpp"
#include "peers/number_formats.hpp"
#include "peers/sides.hpp"
#include "rows.hpp"

namespace oscar {

TEST_CASE("Lloyd and Max's levels for N(0, 1)") {
  const auto near = [](double x) { return doctest::Approx(x).epsilon(2e-4); };
  CHECK(methods::gaussian_codebook(1).levels[1] == near(0.7979));
  const methods::Codebook& two = methods::gaussian_codebook(2);
  CHECK(two.levels[2] == near(0.4528));
  CHECK(two.levels[3] == near(1.5104));
  CHECK(two.bounds[2] == near(0.9816));
  CHECK(methods::gaussian_codebook(3).levels[7] == near(2.1519));
  CHECK(methods::gaussian_codebook(4).levels[15] == near(2.7326));
  CHECK(methods::gaussian_codebook(4).bounds[8] == near(0.2582));
}

TEST_CASE("a codebook: a value on a bound takes the upper level") {
  const methods::Codebook book = methods::codebook_of(std::vector<double>{-2, 0, 1});
  CHECK(book.nearest(-1) == 0);
  CHECK(book.nearest(-1.01F) == -2);
  CHECK(book.nearest(9) == 1);
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
  const SequenceMethod& method = test::method_named("q4_0_rot");
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
  const auto found = reconstruct(test::method_named("kivi_g32").key, heads_view(rows, 40, 1, 1), {5, 40},
                                 {std::nullopt, Precision::kExact, nullptr});
  CHECK(found == rows);
  // Had they started at token 0, a group would hold both kinds.
  const auto shifted = reconstruct(test::method_named("kivi_g32").key, heads_view(rows, 40, 1, 1), {6, 40},
                                   {std::nullopt, Precision::kExact, nullptr});
  CHECK(shifted != rows);
}

TEST_CASE("serving rounds rows to bfloat16, an empty history is none") {
  const std::vector<float> rows{1.001F, 2.003F};
  const SideMethod& side = test::method_named("q8_0").key;
  const auto stored = reconstruct(side, heads_view(rows, 1, 1, 2), {1, 1}, {});
  CHECK(stored == std::vector<float>{1, 2});
  const auto read = reconstruct(side, heads_view(rows, 1, 1, 2), {0, 1}, {});
  for (const float x : read) CHECK(x == round_to_bf16(x));
}

TEST_CASE("results do not depend on the number of threads") {
  std::vector<float> rows(std::size_t{300} * 2 * 64);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = std::sin(static_cast<float>(i * i % 1009));
  for (const SequenceMethod& method : sequence_methods()) {
    CAPTURE(method.name);
    set_num_threads(1);
    const auto one = test::flat_reconstruction(method.key, rows, 2, 64, Rope{10000, 0});
    set_num_threads(5);
    CHECK(test::flat_reconstruction(method.key, rows, 2, 64, Rope{10000, 0}) == one);
  }
  set_num_threads(0);
}

}  // namespace oscar
