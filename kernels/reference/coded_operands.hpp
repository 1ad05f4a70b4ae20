// SPDX-License-Identifier: MIT
// In which products a decode kernel takes the bits of a row (coded_page.hpp has where they lie). An operand is 16 rows
// or columns of a matrix product: one part of the low and one of the high bytes of the words of a piece of 16 bytes,
// either of which may be missing, or one part of a piece of 8 bytes. Both parts are of one class of channels. Kernels
// take operands in pairs, and a pair without a partner costs as much as a whole one. A step over tokens takes as long
// as it has operands, nearly whatever bytes they fill, so plans of levels count them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/reference/coded_page.hpp"

namespace oscar::reference {

struct CodedOperand {
  const CodedPart *low = nullptr, *high = nullptr;
  int piece = -1;  // of 16 bytes; -1: the piece of 8 bytes
  bool wide = false;

  [[nodiscard]] bool single() const { return piece < 0; }
  /// Whether all its bits lie in the upper halves of bytes.
  [[nodiscard]] bool upper() const {
    return (low == nullptr || low->position >= 4) && (high == nullptr || high->position >= 4);
  }
  [[nodiscard]] const CodedPart* part(int side) const { return side == 0 || single() ? low : high; }
  /// The bits of its part `side` in a byte.
  [[nodiscard]] std::uint32_t mask(int side) const {
    const CodedPart* const its = part(side);
    return its == nullptr ? 0 : ((1U << its->width) - 1) << its->position;
  }
};

/// Those of keys: of the wide class first those that kernels take as they are, then those whose bytes they shift to the
/// right by 4, which are in upper halves of bytes; then of the narrow class. One of the upper halves that has no
/// partner joins the others, if one of these has none. parts: of a string of so many bytes.
[[nodiscard]] std::array<std::vector<CodedOperand>, 4> key_operands(const std::vector<CodedPart>& parts, int bytes);
/// Those of values: the two of a pair are of the same piece, and one that has no partner is followed by one without
/// parts.
[[nodiscard]] std::vector<CodedOperand> value_operands(const std::vector<CodedPart>& parts, int bytes);

/// Operands of a head's keys (values: of its values) whose blocks have so many bits, in whole pairs.
[[nodiscard]] int count_operands(std::span<const std::uint8_t> bits, bool keys);

}  // namespace oscar::reference
