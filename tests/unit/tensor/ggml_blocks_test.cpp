// SPDX-License-Identifier: MIT
#include "tensor/ggml_blocks.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <sstream>
#include <stdexcept>

#include "support/support.hpp"
#include "tensor/safetensors.hpp"

namespace oscar {
namespace {

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
