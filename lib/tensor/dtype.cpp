// SPDX-License-Identifier: MIT
#include "tensor/dtype.hpp"

#include <array>
#include <string>

#include "base/check.hpp"
#include "base/errors.hpp"

namespace oscar {
namespace {

struct Entry {
  DType dtype;
  std::size_t size;
  std::string_view name;
};

constexpr std::array<Entry, 10> kTypes{{{DType::kF64, 8, "float64"},
                                        {DType::kF32, 4, "float32"},
                                        {DType::kF16, 2, "float16"},
                                        {DType::kBF16, 2, "bfloat16"},
                                        {DType::kI64, 8, "int64"},
                                        {DType::kI32, 4, "int32"},
                                        {DType::kI16, 2, "int16"},
                                        {DType::kI8, 1, "int8"},
                                        {DType::kU8, 1, "uint8"},
                                        {DType::kBool, 1, "bool"}}};

const Entry& entry(DType dtype) { return kTypes[static_cast<std::size_t>(dtype)]; }

}  // namespace

std::size_t size_of(DType dtype) { return entry(dtype).size; }
std::string_view name_of(DType dtype) { return entry(dtype).name; }

DType dtype_from_name(std::string_view name) {
  std::string known;
  for (const Entry& type : kTypes) {
    if (type.name == name) return type.dtype;
    known += (known.empty() ? "" : ", ") + std::string(type.name);
  }
  throw UsageError("unknown element type \"" + std::string(name) + "\"", "", "use one of: " + known);
}

float float_from_f16(std::uint16_t bits) {
  _Float16 half;
  static_assert(sizeof half == sizeof bits);
  __builtin_memcpy(&half, &bits, sizeof bits);
  return static_cast<float>(half);
}

std::uint16_t f16_from_float(float value) {
  const auto half = static_cast<_Float16>(value);
  std::uint16_t bits = 0;
  __builtin_memcpy(&bits, &half, sizeof bits);
  return bits;
}

}  // namespace oscar
