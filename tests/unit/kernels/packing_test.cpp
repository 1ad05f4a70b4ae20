// SPDX-License-Identifier: MIT
#include "kernels/reference/packing.hpp"

#include <doctest/doctest.h>

#include <stdexcept>
#include <vector>

namespace oscar::reference {
namespace {

using Bytes = std::vector<std::uint8_t>;

}  // namespace

TEST_CASE("golden bytes: a quarter of the row goes into each pair of bits") {
  const std::vector<std::uint8_t> codes{0, 1, 2, 3, 3, 2, 1, 0};
  std::vector<std::uint8_t> bytes(2);
  pack_int2(codes, bytes);
  CHECK(bytes == std::vector<std::uint8_t>{0 | 2 << 2 | 3 << 4 | 1 << 6, 1 | 3 << 2 | 2 << 4 | 0 << 6});
}

TEST_CASE("unpacking gives back every code") {
  std::vector<std::uint8_t> codes(256);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>((i * i + i / 7) % 4);
  std::vector<std::uint8_t> bytes(64);
  std::vector<std::uint8_t> again(256);
  pack_int2(codes, bytes);
  unpack_int2(bytes, again);
  CHECK(again == codes);
}

TEST_CASE("codes of other levels are a byte each; codes beyond their levels, and spans that do not fit, are refused") {
  const Bytes codes{4, 3, 2, 1, 0, 4, 3};
  Bytes bytes(code_bytes(5, codes.size())), again(codes.size());
  pack_codes(codes, 5, bytes);
  CHECK(bytes == codes);
  unpack_codes(bytes, 5, again);
  CHECK(again == codes);
  CHECK(code_bytes(4, 128) == 32);
  CHECK(code_bytes(4, 6) == 6);  // 4 does not divide it
  CHECK_THROWS_AS(pack_codes(codes, 4, bytes), std::logic_error);
  CHECK_THROWS_AS(pack_codes(codes, 5, std::span(bytes).first(3)), std::logic_error);
}

}  // namespace oscar::reference
