// SPDX-License-Identifier: MIT
#include "kernels/reference/packing.hpp"

#include <algorithm>
#include <bit>

#include "base/check.hpp"

namespace oscar::reference {
namespace {

constexpr int kWordBits = 8;

/// Bits [at, at + 8) of `bytes`, lowest first; those beyond the end are 0.
unsigned read_bits(std::span<const std::uint8_t> bytes, std::size_t at) {
  const std::size_t byte = at / 8;
  const unsigned next = byte + 1 < bytes.size() ? bytes[byte + 1] : 0U;
  return ((bytes[byte] | next << 8U) >> (at % 8)) & 0xFFU;
}

/// Adds a word to bits that are still 0.
void write_bits(std::span<std::uint8_t> bytes, std::size_t at, unsigned word) {
  const std::size_t byte = at / 8;
  const unsigned shifted = word << (at % 8);
  bytes[byte] = static_cast<std::uint8_t>(bytes[byte] | (shifted & 0xFFU));
  if (shifted > 0xFFU) bytes[byte + 1] = static_cast<std::uint8_t>(bytes[byte + 1] | shifted >> 8U);
}

bool is_int2(int levels, std::size_t count) { return levels == 4 && count % 4 == 0; }

}  // namespace

void pack_int2(std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes) {
  const std::size_t quarter = bytes.size();
  OSCAR_CHECK(codes.size() == 4 * quarter);
  unsigned seen = 0;
  for (const std::uint8_t code : codes) seen |= code;
  OSCAR_CHECK(seen < 4);
  for (std::size_t i = 0; i < quarter; ++i) {
    bytes[i] = static_cast<std::uint8_t>(codes[i] | codes[i + quarter] << 2U | codes[i + 2 * quarter] << 4U |
                                         codes[i + 3 * quarter] << 6U);
  }
}

void unpack_int2(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes) {
  const std::size_t quarter = bytes.size();
  OSCAR_CHECK(codes.size() == 4 * quarter);
  for (unsigned part = 0; part < 4; ++part) {
    for (std::size_t i = 0; i < quarter; ++i) {
      codes[part * quarter + i] = static_cast<std::uint8_t>((bytes[i] >> (2 * part)) & 3U);
    }
  }
}

RadixWord radix_word(int levels) {
  OSCAR_CHECK(levels >= 2 && levels <= 256);
  RadixWord best{0, 1};
  for (int codes = 1, values = levels; values <= 1 << kWordBits; ++codes, values *= levels) {
    const int bits = std::bit_width(static_cast<unsigned>(values - 1));
    if (bits * best.codes < best.bits * codes || best.codes == 0) best = {codes, bits};
  }
  return best;
}

std::size_t radix_bytes(int levels, std::size_t count) {
  const RadixWord word = radix_word(levels);
  const std::size_t codes = static_cast<std::size_t>(word.codes), words = (count + codes - 1) / codes;
  return (words * static_cast<std::size_t>(word.bits) + 7) / 8;
}

void pack_radix(std::span<const std::uint8_t> codes, int levels, std::span<std::uint8_t> bytes) {
  OSCAR_CHECK(bytes.size() == radix_bytes(levels, codes.size()));
  const RadixWord word = radix_word(levels);
  const auto radix = static_cast<unsigned>(levels);
  std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
  for (std::size_t at = 0; !codes.empty(); at += static_cast<std::size_t>(word.bits)) {
    const auto part = codes.first(std::min(codes.size(), static_cast<std::size_t>(word.codes)));
    unsigned value = 0, place = 1;
    for (const std::uint8_t code : part) {
      OSCAR_CHECK(code < radix);
      value += place * code;
      place *= radix;
    }
    write_bits(bytes, at, value);
    codes = codes.subspan(part.size());
  }
}

void unpack_radix(std::span<const std::uint8_t> bytes, int levels, std::span<std::uint8_t> codes) {
  OSCAR_CHECK(bytes.size() == radix_bytes(levels, codes.size()));
  const RadixWord word = radix_word(levels);
  const auto radix = static_cast<unsigned>(levels);
  for (std::size_t at = 0; !codes.empty(); at += static_cast<std::size_t>(word.bits)) {
    const auto part = codes.first(std::min(codes.size(), static_cast<std::size_t>(word.codes)));
    unsigned value = read_bits(bytes, at) & ((1U << static_cast<unsigned>(word.bits)) - 1U);
    for (std::uint8_t& code : part) {
      code = static_cast<std::uint8_t>(value % radix);
      value /= radix;
    }
    codes = codes.subspan(part.size());
  }
}

std::size_t code_bytes(int levels, std::size_t count) {
  return is_int2(levels, count) ? count / 4 : radix_bytes(levels, count);
}

void pack_codes(std::span<const std::uint8_t> codes, int levels, std::span<std::uint8_t> bytes) {
  if (is_int2(levels, codes.size())) {
    pack_int2(codes, bytes);
  } else {
    pack_radix(codes, levels, bytes);
  }
}

void unpack_codes(std::span<const std::uint8_t> bytes, int levels, std::span<std::uint8_t> codes) {
  if (is_int2(levels, codes.size())) {
    unpack_int2(bytes, codes);
  } else {
    unpack_radix(bytes, levels, codes);
  }
}

void pack_parameters(std::span<const float> pairs, DType dtype, std::span<std::uint8_t> bytes) {
  const std::size_t size = size_of(dtype);
  OSCAR_CHECK(is_activation_dtype(dtype) && bytes.size() == pairs.size() * size);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const std::uint32_t bits = dtype == DType::kF32   ? std::bit_cast<std::uint32_t>(pairs[i])
                               : dtype == DType::kF16 ? f16_from_float(pairs[i])
                                                      : bf16_from_float(pairs[i]);
    for (std::size_t byte = 0; byte < size; ++byte) {
      bytes[i * size + byte] = static_cast<std::uint8_t>(bits >> (8 * byte));
    }
  }
}

void unpack_parameters(std::span<const std::uint8_t> bytes, DType dtype, std::span<float> pairs) {
  const std::size_t size = size_of(dtype);
  OSCAR_CHECK(is_activation_dtype(dtype) && bytes.size() == pairs.size() * size);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    std::uint32_t bits = 0;
    for (std::size_t byte = 0; byte < size; ++byte) bits |= std::uint32_t{bytes[i * size + byte]} << (8 * byte);
    pairs[i] = dtype == DType::kF32   ? std::bit_cast<float>(bits)
               : dtype == DType::kF16 ? float_from_f16(static_cast<std::uint16_t>(bits))
                                      : float_from_bf16(static_cast<std::uint16_t>(bits));
  }
}

double bits_per_code(int levels, int head_dim) {
  return 8 * static_cast<double>(code_bytes(levels, static_cast<std::size_t>(head_dim))) / head_dim;
}

double bits_per_pair(int key_levels, int value_levels, int head_dim) {
  const double apart = bits_per_code(key_levels, head_dim) + bits_per_code(value_levels, head_dim);
  if (key_levels * value_levels > 16) return apart;
  return std::min(apart, 8.0 * ((head_dim + 1) / 2) / head_dim);
}

}  // namespace oscar::reference
