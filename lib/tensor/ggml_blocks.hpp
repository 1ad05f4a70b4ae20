// SPDX-License-Identifier: MIT
// The element types of GGUF tensors, and their values as float32. Each type stores blocks of a fixed number of values
// in a fixed number of bytes; the layouts are those of ggml's ggml-common.h. Results equal those of the Python package
// gguf to the bit. Non-goals: quantising, big-endian data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace oscar {

/// A type's name in ggml without the prefix GGML_TYPE_ ("Q4_K"), and the values and bytes of one block.
struct GgmlType {
  std::string_view name;
  std::uint64_t values = 0, bytes = 0;
};

/// The type that has this number in ggml's enum ggml_type; null if the number is unknown or was withdrawn.
[[nodiscard]] const GgmlType* find_ggml_type(std::uint32_t number);

/// Whether dequantize() takes the type with this number: F32, F16, BF16, MXFP4, IQ4_NL, IQ4_XS, Q8_0, and those of the
/// kinds Q4_0 to Q5_1 and Q2_K to Q6_K.
[[nodiscard]] bool can_dequantize(std::uint32_t type);

/// Writes the values of whole blocks as float32, in the order in which ggml counts them. `blocks` may lie at any
/// address. The caller makes sure of can_dequantize(type) and that `values` has as many elements as the blocks have
/// values; std::logic_error otherwise. Scales that are infinite or NaN give what float32 arithmetic gives.
void dequantize(std::uint32_t type, std::span<const std::byte> blocks, std::span<float> values);

}  // namespace oscar
