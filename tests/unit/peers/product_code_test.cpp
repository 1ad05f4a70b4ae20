// SPDX-License-Identifier: MIT
// Product codes by hand: two pieces of two channels, four centroids, and a second stage of two.
#include "peers/product_code.hpp"

#include "rows.hpp"

namespace oscar {
namespace {

using test::check_close;
using test::reconstruction;
using test::Rows;

/// The second piece's centroids are the first one's, times -1.
const ProductStage kFirst{2, 4, 2, {0, 0, 4, 0, 0, 4, 4, 4, 0, 0, -4, 0, 0, -4, -4, -4}};
const ProductStage kSecond{2, 2, 2, {0.5F, 0.5F, -0.5F, -0.5F, 1, 0, -1, 0}};

Transform identity() { return {MatrixStack::identity(4), {}, {}}; }

}  // namespace

TEST_CASE("each piece becomes its nearest centroid, the first of several") {
  const SideMethod side = product_coded({{kFirst}}, identity());
  check_close(reconstruction(side, {{3.5F, 1, -1, -3.5F}, {2, 0, 9, 9}, {2.01F, 2.01F, -2.01F, -1.99F}}),
              {{4, 0, 0, -4}, {0, 0, 0, 0}, {4, 4, -4, 0}}, 0);
}

TEST_CASE("a second stage codes what the first one leaves") {
  // Left: -0.5, 1 and -1, 0.5.
  const SideMethod side = product_coded({{kFirst, kSecond}}, identity());
  check_close(reconstruction(side, {{3.5F, 1, -1, -3.5F}, {3.5F, -1, 0.1F, 0}}),
              {{4.5F, 0.5F, -1, -4}, {3.5F, -0.5F, 1, 0}}, 0);
}

TEST_CASE("rows are coded as the transform stores them, mean and heads included, and come back native") {
  // Channels exchanged between the pieces' halves; stretched by 2, read by 1 / 2.
  Transform transform{MatrixStack(2, 4), MatrixStack(2, 4), {1, 0, 0, 0}};
  for (int head = 0; head < 2; ++head) {
    const double scale = head == 0 ? 1 : 2;
    for (std::size_t i = 0; i < 4; ++i) {
      transform.rotation[head][i * 4 + (3 - i)] = scale;
      transform.read_rotation[head][i * 4 + (3 - i)] = 1 / scale;
    }
  }
  const std::vector<float> decoded = test::flat_reconstruction(product_coded({{kFirst}}, transform),
                                                               {-2.9F, 0.1F, 0, 4.2F, -2.9F, 0.1F, 0, 4.2F}, 2, 4);
  // Stored 4.2, 0, 0.1, -3.9 and 8.4, 0, 0.2, -7.8.
  const std::vector<float> expected{-3, 0, 0, 4, -1, 0, 0, 2};
  CHECK(decoded == expected);
}

TEST_CASE("serving rounds what a stage leaves to bfloat16") {
  // 1.00390625 becomes 1, and what it leaves 1.003, which is 1 as well; exactly, it leaves 0.99909.
  const ProductStage odd{1, 1, 1, {1.00390625F}}, near{1, 2, 1, {0.999F, 1.0005F}};
  std::vector<float> exact{2.003F}, served = exact;
  ProductCodebook{{odd, near}}.take_nearest(exact, Precision::kExact);
  ProductCodebook{{odd, near}}.take_nearest(served, Precision::kServing);
  CHECK(exact[0] == 1.00390625F + 0.999F);
  CHECK(served[0] == 1.00390625F + 1.0005F);
}

TEST_CASE("bits are those of codes: bytes, and nibbles in a second stage of up to 16") {
  const ProductStage first{16, 256, 8, {}};
  CHECK(ProductCodebook{{first}}.bits() == 1.0);
  CHECK(ProductCodebook{{{16, 16, 8, {}}}}.bits() == 1.0);
  CHECK(ProductCodebook{{first, {16, 16, 8, {}}}}.bits() == 1.5);
  CHECK(ProductCodebook{{first, {16, 32, 8, {}}}}.bits() == 2.0);
  CHECK(ProductCodebook{{{15, 16, 8, {}}, {15, 16, 8, {}}}}.bits() == 2.0);
  const StoredBits stored =
      product_coded({{first, {16, 16, 8, {}}}}, {MatrixStack::identity(128), {}, {}}).bits({128, 2});
  CHECK(stored.codes == 1.5);
  CHECK(stored.parameters == 0);
}

}  // namespace oscar
