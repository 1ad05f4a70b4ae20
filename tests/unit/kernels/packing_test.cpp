// SPDX-License-Identifier: MIT
#include "kernels/reference/packing.hpp"

#include <doctest/doctest.h>

#include <random>
#include <stdexcept>
#include <vector>

namespace oscar::reference {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes random_codes(std::size_t count, int levels, unsigned seed) {
  std::mt19937 engine(seed);
  Bytes codes(count);
  for (auto& code : codes) code = static_cast<std::uint8_t>(engine() % static_cast<unsigned>(levels));
  return codes;
}

Bytes packed(const Bytes& codes, int levels) {
  Bytes bytes(radix_bytes(levels, codes.size()), 0xFF);
  pack_radix(codes, levels, bytes);
  return bytes;
}

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

TEST_CASE("radix words take the fewest bits a code") {
  const auto word = [](int levels) {
    const RadixWord w = radix_word(levels);
    return std::pair(w.codes, w.bits);
  };
  CHECK(word(2) == std::pair(1, 1));
  CHECK(word(3) == std::pair(5, 8));  // 243 of 256
  CHECK(word(4) == std::pair(1, 2));
  CHECK(word(5) == std::pair(3, 7));   // 125 of 128
  CHECK(word(6) == std::pair(3, 8));   // 216 of 256
  CHECK(word(7) == std::pair(1, 3));   // 49 of 64 is 3 bits too
  CHECK(word(11) == std::pair(2, 7));  // 121 of 128
  CHECK(word(12) == std::pair(1, 4));
  CHECK(word(256) == std::pair(1, 8));
  CHECK(radix_bytes(5, 128) == 38);  // 43 words, 301 bits
  CHECK(radix_bytes(3, 128) == 26);  // 26 words, 208 bits
}

TEST_CASE("golden bytes: radix words from the lowest bit on") {
  // 4 + 5 * 3 + 25 * 2 = 69, then 1 + 5 * 0 + 25 * 4 = 101 from bit 7 on, then 3 alone from bit 14 on:
  // 69 | (101 & 1) << 7 = 197; 101 >> 1 = 50 | (3 & 3) << 6 = 242; 3 >> 2 = 0
  CHECK(packed({4, 3, 2, 1, 0, 4, 3}, 5) == Bytes{197, 242, 0});
  CHECK(packed({2, 1, 0, 2, 1, 1}, 3) == Bytes{2 + 3 * 1 + 9 * 0 + 27 * 2 + 81 * 1, 1});
  CHECK(packed({3, 0, 1, 2, 1}, 4) == Bytes{3 | 0 << 2 | 1 << 4 | 2 << 6, 1});
  CHECK(packed({7, 1, 6}, 8) == Bytes{0b10'001'111, 0b1});  // 3 bits each: 6 = 110 crosses the byte
  CHECK(packed({15, 2, 9}, 16) == Bytes{0x2F, 0x09});
  CHECK(packed({1, 0, 1, 1, 0, 0, 0, 0, 1}, 2) == Bytes{0b1101, 1});
}

TEST_CASE("unpacking words gives back every code, for any number of levels and channels") {
  for (int levels = 2; levels <= 16; ++levels) {
    for (const std::size_t count : {1, 2, 7, 15, 31, 80, 127, 128}) {
      const Bytes codes = random_codes(count, levels, static_cast<unsigned>(levels));
      Bytes again(count, 99);
      unpack_radix(packed(codes, levels), levels, again);
      CHECK(again == codes);
    }
  }
}

TEST_CASE("codes beyond their levels, and spans that do not fit, are refused") {
  Bytes bytes(1);
  CHECK_THROWS_AS(pack_radix(Bytes{5}, 5, bytes), std::logic_error);
  CHECK_THROWS_AS(pack_radix(Bytes{1, 1, 1, 1}, 5, bytes), std::logic_error);
}

}  // namespace oscar::reference
