// SPDX-License-Identifier: MIT
#include "tensor/ggml_blocks.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "base/errors.hpp"
#include "tensor/dtype.hpp"

namespace oscar {
namespace {

/// One block of a type, as bytes.
class Block {
 public:
  explicit Block(const std::byte* bytes) : bytes_(bytes) {}

  [[nodiscard]] std::uint32_t byte(std::size_t at) const { return std::to_integer<std::uint32_t>(bytes_[at]); }
  [[nodiscard]] float signed_byte(std::size_t at) const { return static_cast<std::int8_t>(byte(at)); }
  [[nodiscard]] std::uint32_t word(std::size_t at) const { return byte(at) | byte(at + 1) << 8U; }
  [[nodiscard]] float half(std::size_t at) const { return float_from_f16(static_cast<std::uint16_t>(word(at))); }
  /// Bit number i of those that begin at a byte.
  [[nodiscard]] std::uint32_t bit(std::size_t at, std::size_t i) const { return byte(at + i / 8) >> i % 8 & 1U; }
  /// Number i of `count` values of four bits: the first half are low nibbles, the second high ones of the same bytes.
  [[nodiscard]] std::uint32_t nibble(std::size_t at, std::size_t i, std::size_t count = 32) const {
    return byte(at + i % (count / 2)) >> (i < count / 2 ? 0U : 4U) & 15U;
  }
  /// Number i of 256 values of two bits: a run of 128 takes each of its 32 bytes four times.
  [[nodiscard]] std::uint32_t pair(std::size_t at, std::size_t i) const {
    return byte(at + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3U;
  }
  /// Bit i / 32 of one of 32 bytes.
  [[nodiscard]] std::uint32_t plane(std::size_t at, std::size_t i) const { return byte(at + i % 32) >> i / 32 & 1U; }

 private:
  const std::byte* bytes_;
};

float as_float(std::uint32_t value) { return static_cast<float>(value); }
float less(std::uint32_t value, int offset) { return static_cast<float>(static_cast<int>(value) - offset); }

constexpr std::array<float, 16> kNonLinear{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr std::array<float, 16> kFloat4{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // times two

// Value number i of a block.

float f32(Block b, std::size_t) { return std::bit_cast<float>(b.word(0) | b.word(2) << 16U); }
float f16(Block b, std::size_t) { return b.half(0); }
float bf16(Block b, std::size_t) { return std::bit_cast<float>(b.word(0) << 16U); }
float q8_0(Block b, std::size_t i) { return b.half(0) * b.signed_byte(2 + i); }
float q4_0(Block b, std::size_t i) { return b.half(0) * less(b.nibble(2, i), 8); }
float q4_1(Block b, std::size_t i) { return b.half(0) * as_float(b.nibble(4, i)) + b.half(2); }
float q5_0(Block b, std::size_t i) { return b.half(0) * less(b.nibble(6, i) | b.bit(2, i) << 4U, 16); }
float q5_1(Block b, std::size_t i) { return b.half(0) * as_float(b.nibble(8, i) | b.bit(4, i) << 4U) + b.half(2); }
float iq4_nl(Block b, std::size_t i) { return b.half(0) * kNonLinear[b.nibble(2, i)]; }

/// Half of 2^(e - 127), which may be subnormal.
float half_power(std::uint32_t e) { return std::bit_cast<float>(e < 2 ? 0x00200000U << e : (e - 1) << 23U); }
float mxfp4(Block b, std::size_t i) { return half_power(b.byte(0)) * kFloat4[b.nibble(1, i)]; }

float q2_k(Block b, std::size_t i) {
  const std::uint32_t scale = b.byte(i / 16);
  return b.half(80) * as_float(scale & 15U) * as_float(b.pair(16, i)) - b.half(82) * as_float(scale >> 4U);
}

/// Scales have six bits: low ones as 16 nibbles of 8 bytes, high ones as pairs of 4 bytes.
float q3_k(Block b, std::size_t i) {
  const std::size_t group = i / 16;
  const std::uint32_t high = b.byte(96 + 8 + group % 4) >> group / 4 * 2 & 3U;
  const float scale = b.half(108) * less(b.nibble(96, group, 16) | high << 4U, 32);
  return scale * less(b.pair(32, i) + 4 * b.plane(0, i), 4);
}

struct ScaleAndMin {
  float scale = 0, min = 0;
};

/// Group number g of 8: six bits each in 12 bytes at 4, factors of the halves at 0 and 2.
ScaleAndMin scale_and_min(Block b, std::size_t g) {
  const std::uint32_t first = b.byte(4 + g % 4), second = b.byte(8 + g % 4), both = b.byte(12 + g % 4);
  const std::uint32_t scale = g < 4 ? first & 63U : (both & 15U) | (first >> 2U & 48U);
  const std::uint32_t min = g < 4 ? second & 63U : both >> 4U | (second >> 2U & 48U);
  return {b.half(0) * as_float(scale), b.half(2) * as_float(min)};
}

float q4_k(Block b, std::size_t i) {
  const auto [scale, min] = scale_and_min(b, i / 32);
  return scale * as_float(b.nibble(16 + i / 64 * 32, i % 64, 64)) - min;
}

float q5_k(Block b, std::size_t i) {
  const auto [scale, min] = scale_and_min(b, i / 32);
  return scale * as_float(b.nibble(48 + i / 64 * 32, i % 64, 64) | b.plane(16, i) << 4U) - min;
}

float q6_k(Block b, std::size_t i) {
  const std::uint32_t low = b.nibble(i / 128 * 64, i % 128, 128);
  return b.half(208) * b.signed_byte(192 + i / 16) * less(low | b.pair(128, i) << 4U, 32);
}

float iq4_xs(Block b, std::size_t i) {
  const std::size_t group = i / 32;
  const std::uint32_t low = b.byte(4 + group / 2) >> group % 2 * 4 & 15U, high = b.word(2) >> group * 2 & 3U;
  return b.half(0) * less(low | high << 4U, 32) * kNonLinear[b.nibble(8 + group * 16, i % 32)];
}

using Value = float (*)(Block, std::size_t);
using DecodeBlocks = void (*)(const std::byte* blocks, std::size_t count, float* values);

/// Decodes blocks of kValues values in kBytes bytes: 32 values at a time, of which most types take the same bits of
/// different bytes.
template <Value kValue, std::size_t kValues, std::size_t kBytes>
void decode(const std::byte* blocks, std::size_t count, float* values) {
  constexpr std::size_t kRun = std::min<std::size_t>(kValues, 32);
  for (std::size_t block = 0; block < count; ++block) {
    const Block bytes(blocks + block * kBytes);
    std::array<float, kValues> own;  // It cannot alias the block, so the compiler converts each scale once.
#pragma GCC unroll 8
    for (std::size_t run = 0; run < kValues; run += kRun) {
      for (std::size_t i = 0; i < kRun; ++i) own[run + i] = kValue(bytes, run + i);
    }
    std::ranges::copy(own, values + block * kValues);
  }
}

struct Known {
  std::uint32_t number = 0;
  GgmlType type;
  DecodeBlocks decode = nullptr;
};

template <Value kValue, std::size_t kValues, std::size_t kBytes>
constexpr Known readable(std::uint32_t number, std::string_view name) {
  return {number, {name, kValues, kBytes}, decode<kValue, kValues, kBytes>};
}

constexpr std::array kGgmlTypes{
    readable<f32, 1, 4>(0, "F32"),
    readable<f16, 1, 2>(1, "F16"),
    readable<q4_0, 32, 18>(2, "Q4_0"),
    readable<q4_1, 32, 20>(3, "Q4_1"),
    readable<q5_0, 32, 22>(6, "Q5_0"),
    readable<q5_1, 32, 24>(7, "Q5_1"),
    readable<q8_0, 32, 34>(8, "Q8_0"),
    readable<q2_k, 256, 84>(10, "Q2_K"),
    readable<q3_k, 256, 110>(11, "Q3_K"),
    readable<q4_k, 256, 144>(12, "Q4_K"),
    readable<q5_k, 256, 176>(13, "Q5_K"),
    readable<q6_k, 256, 210>(14, "Q6_K"),
    Known{9, {"Q8_1", 32, 36}},
    Known{15, {"Q8_K", 256, 292}},
    Known{16, {"IQ2_XXS", 256, 66}},
    Known{17, {"IQ2_XS", 256, 74}},
    Known{18, {"IQ3_XXS", 256, 98}},
    Known{19, {"IQ1_S", 256, 50}},
    readable<iq4_nl, 32, 18>(20, "IQ4_NL"),
    Known{21, {"IQ3_S", 256, 110}},
    Known{22, {"IQ2_S", 256, 82}},
    readable<iq4_xs, 256, 136>(23, "IQ4_XS"),
    Known{24, {"I8", 1, 1}},
    Known{25, {"I16", 1, 2}},
    Known{26, {"I32", 1, 4}},
    Known{27, {"I64", 1, 8}},
    Known{28, {"F64", 1, 8}},
    Known{29, {"IQ1_M", 256, 56}},
    readable<bf16, 1, 2>(30, "BF16"),
    Known{34, {"TQ1_0", 256, 54}},
    Known{35, {"TQ2_0", 256, 66}},
    readable<mxfp4, 32, 17>(39, "MXFP4"),
    Known{40, {"NVFP4", 64, 36}},
    Known{41, {"Q1_0", 128, 18}},
};

const Known* find_known(std::uint32_t number) {
  const auto* const found = std::ranges::find(kGgmlTypes, number, &Known::number);
  return found == kGgmlTypes.end() ? nullptr : found;
}

}  // namespace

const GgmlType* find_ggml_type(std::uint32_t number) {
  const Known* known = find_known(number);
  return known == nullptr ? nullptr : &known->type;
}

bool can_dequantize(std::uint32_t number) {
  const Known* known = find_known(number);
  return known != nullptr && known->decode != nullptr;
}

void dequantize(std::uint32_t number, std::span<const std::byte> blocks, std::span<float> values) {
  OSCAR_CHECK(can_dequantize(number));
  const Known& known = *find_known(number);
  OSCAR_CHECK(values.size() % known.type.values == 0);
  const std::size_t count = values.size() / known.type.values;
  OSCAR_CHECK(blocks.size() == count * known.type.bytes);
  known.decode(blocks.data(), count, values.data());
}

}  // namespace oscar
