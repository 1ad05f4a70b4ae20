// SPDX-License-Identifier: MIT
// Norm and rotary embedding of a key, by hand.
#include "kernels/reference/norm_rope.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace oscar::reference {
namespace {

using Row = std::vector<float>;

Row normed(Row row, const Row& weight, NormWeight type, float epsilon) {
  rms_norm_row(row, weight, type, epsilon);
  return row;
}

Row turned(Row row, const Row& cos_sin, bool interleaved) {
  rope_row(row, cos_sin, interleaved);
  return row;
}

}  // namespace

TEST_CASE("a row is divided by its root mean square, and multiplied by the weight") {
  // Squares 1 + 49 + 1 + 49 have the mean 25.
  CHECK(normed({1, -7, 1, 7}, {5, 10, -5, 0}, NormWeight::kFloat32, 1e-9F) == Row{1, -14, -1, 0});
  // A mean of 3 and epsilon make 4.
  CHECK(normed({1, 1, 3, 1}, {2, 2, 2, 2}, NormWeight::kBfloat16, 1.0F) == Row{1, 1, 3, 1});
  CHECK(normed({0, 0}, {3, 3}, NormWeight::kBfloat16, 1e-6F) == Row{0, 0});
}

TEST_CASE("a weight in bfloat16 multiplies what was rounded, one in float32 what was not") {
  // 1 / sqrt(3) is 0.57735, in bfloat16 0.578125. Times 7 these are 4.0415 and 4.0469; bfloat16 has 4.03125 and 4.0625.
  CHECK(normed({1, 1}, {7, 7}, NormWeight::kBfloat16, 2.0F) == Row{4.0625F, 4.0625F});
  CHECK(normed({1, 1}, {7, 7}, NormWeight::kFloat32, 2.0F) == Row{4.03125F, 4.03125F});
}

TEST_CASE("pairs of channels turn, others stay") {
  const Row row{1, 2, 3, 4, 5, 6}, cos_sin{0, 1, 1, 0};  // the first pair by a quarter, the second not
  CHECK(turned(row, cos_sin, false) == Row{-3, 2, 1, 4, 5, 6});
  CHECK(turned(row, cos_sin, true) == Row{-2, 1, 3, 4, 5, 6});
}

TEST_CASE("what was turned is rounded once") {
  // Neighbours in bfloat16 are 2 apart from 256 on, and 1 below: 257 is a tie and goes to 256, 257.5 goes to 258, and
  // 254.5 is a tie.
  CHECK(turned({256, 1}, {1, -1}, false) == Row{256, -255});
  CHECK(turned({256, 1.5F}, {1, -1}, false) == Row{258, -254});
}

}  // namespace oscar::reference
