// SPDX-License-Identifier: MIT
// Element types of stored tensors, and the exact conversions between them and float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace oscar {

enum class DType : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool, kF8E4M3, kF8E5M2, kE8M0 };

[[nodiscard]] std::size_t size_of(DType dtype);
/// "float32", "bfloat16", "int64" …
[[nodiscard]] std::string_view name_of(DType dtype);
/// "F32", "BF16", "I64" …: the names in safetensors files.
[[nodiscard]] std::string_view safetensors_name_of(DType dtype);
[[nodiscard]] std::optional<DType> find_safetensors_dtype(std::string_view name);
/// The inverse of name_of. Throws UsageError that lists the names.
[[nodiscard]] DType dtype_from_name(std::string_view name);
/// True for the types that activations come in: float32, float16, bfloat16.
[[nodiscard]] constexpr bool is_activation_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

/// Of numbers; kE8M0 is of scales.
[[nodiscard]] constexpr bool is_float8(DType dtype) { return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2; }

/// bfloat16 bits to float, exact.
[[nodiscard]] inline float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// float to bfloat16 bits, nearest, ties to even; NaN stays NaN.
[[nodiscard]] inline std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// float rounded to the nearest bfloat16.
[[nodiscard]] inline float round_to_bf16(float value) { return float_from_bf16(bf16_from_float(value)); }
/// Rounds all values to bfloat16, in place.
void round_to_bf16(std::span<float> values);

/// IEEE half bits to float, exact.
[[nodiscard]] inline float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16U, magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00U) {  // infinity and NaN, whose quiet bit is set as hardware does
    const std::uint32_t quiet = magnitude > 0x7c00U ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7f800000U | quiet | (magnitude & 0x3ffU) << 13U);
  }
  // The exponent of a float is larger by 127 - 15; multiplying corrects it for subnormal halves too, exactly.
  const float scaled = std::bit_cast<float>(magnitude << 13U) * std::bit_cast<float>((254U - 15U) << 23U);
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
}
/// float8_e4m3fn bits to float, exact: bias 7, no infinities, 0x7f and 0xff are NaN.
[[nodiscard]] float float_from_f8e4m3(std::uint8_t bits);
/// float to IEEE half bits, nearest, ties to even.
[[nodiscard]] std::uint16_t f16_from_float(float value);

}  // namespace oscar
