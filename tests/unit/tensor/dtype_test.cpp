// SPDX-License-Identifier: MIT
#include "tensor/dtype.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace oscar {

TEST_CASE("halves become floats exactly and come back, all of them") {
  CHECK(float_from_f16(0x3c00) == 1.0F);
  CHECK(float_from_f16(0xc000) == -2.0F);
  CHECK(float_from_f16(0x7bff) == 65504.0F);
  CHECK(float_from_f16(0x0001) == std::ldexp(1.0F, -24));
  CHECK(float_from_f16(0x03ff) == std::ldexp(1023.0F, -24));
  CHECK(float_from_f16(0xfc00) == -INFINITY);
  CHECK(std::signbit(float_from_f16(0x8000)));
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = float_from_f16(static_cast<std::uint16_t>(bits));
    if (!std::isnan(value) && f16_from_float(value) != bits) ++wrong;
    if (std::isnan(value) != ((bits & 0x7fffU) > 0x7c00U)) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("floats round to the nearest half, ties to even") {
  CHECK(f16_from_float(1 + std::ldexp(1.0F, -11)) == 0x3c00);
  CHECK(f16_from_float(1 + std::ldexp(3.0F, -11)) == 0x3c02);
  CHECK(f16_from_float(std::nextafter(1 + std::ldexp(1.0F, -11), 2.0F)) == 0x3c01);
  CHECK(f16_from_float(65519.0F) == 0x7bff);
  CHECK(f16_from_float(65520.0F) == 0x7c00);
  CHECK(f16_from_float(-1e30F) == 0xfc00);
  CHECK(f16_from_float(std::ldexp(1.0F, -25)) == 0x0000);
  CHECK(f16_from_float(std::ldexp(1.5F, -25)) == 0x0001);
  CHECK(f16_from_float(std::ldexp(3.0F, -25)) == 0x0002);
  CHECK(f16_from_float(std::ldexp(2047.0F, -25)) == 0x0400);
  CHECK((f16_from_float(NAN) & 0x7fffU) > 0x7c00U);
}

}  // namespace oscar
