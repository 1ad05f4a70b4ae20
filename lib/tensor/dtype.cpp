// SPDX-License-Identifier: MIT
#include "tensor/dtype.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "base/errors.hpp"
#include "base/exp.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

struct NamedType {
  DType dtype;
  std::size_t size;
  std::string_view name, safetensors;
};

constexpr std::array<NamedType, 13> kTypes{{{DType::kF64, 8, "float64", "F64"},
                                            {DType::kF32, 4, "float32", "F32"},
                                            {DType::kF16, 2, "float16", "F16"},
                                            {DType::kBF16, 2, "bfloat16", "BF16"},
                                            {DType::kI64, 8, "int64", "I64"},
                                            {DType::kI32, 4, "int32", "I32"},
                                            {DType::kI16, 2, "int16", "I16"},
                                            {DType::kI8, 1, "int8", "I8"},
                                            {DType::kU8, 1, "uint8", "U8"},
                                            {DType::kBool, 1, "bool", "BOOL"},
                                            {DType::kF8E4M3, 1, "float8_e4m3fn", "F8_E4M3"},
                                            {DType::kF8E5M2, 1, "float8_e5m2", "F8_E5M2"},
                                            {DType::kE8M0, 1, "float8_e8m0fnu", "F8_E8M0"}}};

const NamedType& entry(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)]; }

OSCAR_VECTOR_CLONES void round_floats_to_bf16(float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = round_to_bf16(values[i]);
}

}  // namespace

void round_to_bf16(std::span<float> values) { round_floats_to_bf16(values.data(), values.size()); }

std::size_t size_of(DType dtype) { return entry(dtype).size; }
std::string_view name_of(DType dtype) { return entry(dtype).name; }

std::string_view safetensors_name_of(DType dtype) { return entry(dtype).safetensors; }

std::optional<DType> find_safetensors_dtype(std::string_view name) {
  for (const NamedType& type : kTypes) {
    if (type.safetensors == name) return type.dtype;
  }
  return std::nullopt;
}

DType dtype_from_name(std::string_view name) {
  for (const NamedType& type : kTypes) {
    if (type.name == name) return type.dtype;
  }
  throw UsageError("unknown element type \"" + std::string(name) + "\"", "",
                   "use one of: " + joined(kTypes, ", ", &NamedType::name));
}

float float_from_f8e4m3(std::uint8_t bits) {
  const int exponent = (bits >> 3) & 15, fraction = bits & 7;
  const bool nan = exponent == 15 && fraction == 7;
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                        : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  if (nan) return std::numeric_limits<float>::quiet_NaN();
  return (bits & 0x80U) != 0 ? -magnitude : magnitude;
}

std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U, magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U | ((magnitude >> 13U) & 0x3ffU));
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // rounds to 65536 or more
  if (magnitude < 0x38800000U) {
    // Subnormal: adding 0.5 leaves the rounded multiple of 2^-24 in the lowest bits, ties to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U));
  }
  const std::uint32_t odd = (magnitude >> 13U) & 1U;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000U + 0xfffU + odd) >> 13U));
}

}  // namespace oscar
