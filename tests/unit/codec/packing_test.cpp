// SPDX-License-Identifier: MIT
#include "codec/packing.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace oscar {

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

}  // namespace oscar
