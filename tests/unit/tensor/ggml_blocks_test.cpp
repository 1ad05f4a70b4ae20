// SPDX-License-Identifier: MIT
#include "tensor/ggml_blocks.hpp"

#include <doctest/doctest.h>

#include <initializer_list>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "support/support.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

/// Bytes of a block that are not zero, by their places.
using Placed = std::initializer_list<std::pair<std::size_t, int>>;

/// The values of one block.
std::vector<float> decoded(std::uint32_t number, Placed placed) {
  const GgmlType& type = *find_ggml_type(number);
  std::vector<std::byte> block(type.bytes);
  for (const auto& [place, byte] : placed) block.at(place) = static_cast<std::byte>(byte);
  std::vector<float> values(type.values);
  dequantize(number, block, values);
  return values;
}

constexpr std::uint32_t kTypeNumbers = 64;  // more than ggml has types

/// What gguf wrote: the file's values are held to ours, bit by bit.
void check_golden(const SafetensorsFile& golden, std::uint32_t number) {
  const GgmlType& type = *find_ggml_type(number);
  CAPTURE(type.name);
  const Tensor blocks = golden.load(std::string(type.name) + ".blocks");
  const Tensor expected = golden.load(std::string(type.name) + ".values");
  REQUIRE(blocks.shape[0] >= 4);
  Tensor ours(DType::kF32, {blocks.shape[0], static_cast<std::int64_t>(type.values)});
  dequantize(number, blocks.data, ours.values<float>());
  CHECK(ours == expected);
}

}  // namespace

TEST_CASE("the table of ggml's types is that of gguf") {
  const SafetensorsFile golden(test::data("tensor/ggml_blocks.safetensors"));
  const std::vector<std::int64_t> sizes = golden.load("sizes").to_int64();
  std::istringstream names(golden.metadata().at("names"));
  std::size_t types = 0;
  for (std::string name; names >> name; ++types) {
    const GgmlType* type = find_ggml_type(static_cast<std::uint32_t>(sizes.at(3 * types)));
    REQUIRE_MESSAGE(type != nullptr, name);
    CHECK(type->name == name);
    CHECK(type->values == static_cast<std::uint64_t>(sizes[3 * types + 1]));
    CHECK(type->bytes == static_cast<std::uint64_t>(sizes[3 * types + 2]));
  }
  CHECK(types > 30);
  CHECK(find_ggml_type(9)->bytes == 36);  // Q8_1, of which gguf has another size
  CHECK(find_ggml_type(4) == nullptr);
  CHECK(find_ggml_type(kTypeNumbers) == nullptr);
  CHECK(find_ggml_type(0xffffffffU) == nullptr);
}

TEST_CASE("values are those of gguf to the bit: random bytes, extreme scales, quantised rows") {
  const SafetensorsFile golden(test::data("tensor/ggml_blocks.safetensors"));
  std::size_t readable = 0;
  for (std::uint32_t number = 0; number < kTypeNumbers; ++number) {
    if (!can_dequantize(number)) continue;
    check_golden(golden, number);
    ++readable;
  }
  CHECK(golden.tensors().size() == 2 * readable + 1);  // nothing in the file is left out
}

TEST_CASE("blocks of 32 values by hand") {
  SUBCASE("Q4_0: scale 2, low nibbles are the first half, 8 means zero") {
    const auto values = decoded(2, {{1, 0x40}, {2, 0xf9}});
    CHECK(values[0] == 2);
    CHECK(values[16] == 14);
    CHECK(values[1] == -16);
  }
  SUBCASE("Q4_1: scale 2, minimum -1") {
    const auto values = decoded(3, {{1, 0x40}, {3, 0xbc}, {4, 0xf9}});
    CHECK(values[0] == 17);
    CHECK(values[16] == 29);
    CHECK(values[1] == -1);
  }
  SUBCASE("Q5_0: the fifth bit of value 16 is the lowest of the third byte; 16 means zero") {
    const auto values = decoded(6, {{1, 0x3c}, {4, 0x01}, {6, 0x31}});
    CHECK(values[0] == -15);
    CHECK(values[16] == 3);
    CHECK(values[17] == -16);
  }
  SUBCASE("Q5_1: the same with a minimum of 0.5") {
    const auto values = decoded(7, {{1, 0x3c}, {3, 0x38}, {6, 0x01}, {8, 0x31}});
    CHECK(values[0] == 1.5F);
    CHECK(values[16] == 19.5F);
    CHECK(values[17] == 0.5F);
  }
  SUBCASE("Q8_0: signed bytes and the smallest subnormal scale") {
    const auto values = decoded(8, {{0, 0x01}, {2, 0x7f}, {33, 0x80}});
    CHECK(values[0] == 127 * 0x1p-24F);
    CHECK(values[31] == -128 * 0x1p-24F);
  }
  SUBCASE("IQ4_NL: levels from a table") {
    const auto values = decoded(20, {{1, 0x3c}, {2, 0xf8}});
    CHECK(values[0] == 1);
    CHECK(values[16] == 113);
    CHECK(values[1] == -127);
  }
  SUBCASE("MXFP4: E2M1 times a power of two") {
    const auto values = decoded(39, {{0, 128}, {1, 0xf2}});
    CHECK(values[0] == 2);     // 1 * 2
    CHECK(values[16] == -12);  // -6 * 2
  }
}

TEST_CASE("blocks of 256 values by hand") {
  SUBCASE("Q2_K: scale 1 of group 2 with minimum 3 * 0.5; four codes in a byte, 32 values apart") {
    const auto values = decoded(10, {{2, 0x31}, {4, 0x02}, {16 + 5, 0xe4}, {81, 0x3c}, {83, 0x38}});
    CHECK(values[5] == 0);      // group 0 has neither scale nor minimum
    CHECK(values[37] == -0.5);  // 1 * 1 - 1.5
    CHECK(values[69] == 4);     // 2 * 2
    CHECK(values[38] == -1.5);
  }
  SUBCASE("Q3_K: a scale of 33 is one step; a set third bit takes no 4 away") {
    // Group 9: the high nibble of the second byte of scales, and the bits 4 and 5 of the tenth byte.
    const auto values = decoded(11, {{96 + 1, 0x10}, {96 + 9, 0x20}, {32 + 32 + 16, 0x03}, {16, 0x10}, {109, 0x3c}});
    CHECK(values[128 + 16] == 3);
    CHECK(values[128 + 17] == -4);
    CHECK(values[0] == 128);  // -4 * -32
  }
  SUBCASE("Q4_K: scales and minima of six bits") {
    // Group 1 has scale 5 and minimum 7, group 6 scale 0x21 and minimum 0x12; bytes of codes 3 and 99.
    const auto values = decoded(12, {{1, 0x3c},
                                     {3, 0x38},
                                     {5, 5},
                                     {9, 7},
                                     {6, 0x80},
                                     {10, 0x40},
                                     {14, 0x21},  //
                                     {16 + 3, 0x90},
                                     {16 + 99, 0x02}});
    CHECK(values[35] == 41.5);  // 5 * 9 - 3.5
    CHECK(values[36] == -3.5);
    CHECK(values[195] == 57);  // 0x21 * 2 - 9
    CHECK(values[0] == 0);
  }
  SUBCASE("Q5_K: the same with fifth bits, one group to a bit") {
    const auto values = decoded(13, {{1, 0x3c}, {3, 0x38}, {5, 5}, {9, 7}, {16 + 3, 0x02}, {48 + 3, 0x90}});
    CHECK(values[35] == 121.5);  // 5 * 25 - 3.5
    CHECK(values[36] == -3.5);
  }
  SUBCASE("Q6_K: signed scales of 16 values") {
    // Value 128 + 70 is in group 12: the low nibble of byte 64 + 6 is of value 134, the high one of value 198.
    const auto values = decoded(14, {{64 + 6, 0x50}, {128 + 32 + 6, 0x30}, {192 + 12, 0xfe}, {209, 0x3c}});
    CHECK(values[198] == -42);  // -2 * (5 + 48 - 32)
    CHECK(values[199] == 64);   // -2 * -32
    CHECK(values[134] == 0);
  }
  SUBCASE("IQ4_XS: scales of six bits, their high two apart") {
    const auto values = decoded(23, {{1, 0x3c}, {2, 0x08}, {4, 0x30}, {8 + 16, 0xf8}});
    CHECK(values[32] == 3);  // (3 + 32 - 32) * 1
    CHECK(values[48] == 3 * 113);
    CHECK(values[0] == 32 * 127);  // -32 * -127
  }
}

TEST_CASE("several blocks are read from any address, and none is fine") {
  const std::uint8_t bytes[] = {0, 0x00, 0x3c, 0x00, 0xc0, 0x00, 0x7c};
  float values[3] = {};
  dequantize(1, std::as_bytes(std::span(bytes)).subspan(1), values);
  CHECK(values[0] == 1);
  CHECK(values[1] == -2);
  CHECK(values[2] == std::numeric_limits<float>::infinity());
  dequantize(12, {}, {});
}

TEST_CASE("types without values and parts of blocks are errors of the caller") {
  std::vector<std::byte> bytes(34);
  std::vector<float> values(32);
  CHECK_THROWS_AS(dequantize(24, bytes, values), std::logic_error);
  CHECK_THROWS_AS(dequantize(99, bytes, values), std::logic_error);
  CHECK_THROWS_AS(dequantize(8, std::span(bytes).first(33), values), std::logic_error);
  CHECK_THROWS_AS(dequantize(8, bytes, std::span(values).first(31)), std::logic_error);
  CHECK_FALSE(can_dequantize(24));
  CHECK_FALSE(can_dequantize(99));
}

}  // namespace oscar
