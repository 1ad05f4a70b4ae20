// SPDX-License-Identifier: MIT
// In which products a decode kernel takes the bits of a row (coded_page.hpp has where they lie). An operand is 16 rows
// or columns of a matrix product: one part of the low and one of the high bytes of the words of a piece of 16 bytes,
// either of which may be missing, or one part of a piece of 8 bytes. Both parts are of one class of channels. Kernels
// take operands in pairs, and one without a partner costs as much as two. The time of a step over tokens grows with its
// operands, and hardly with their bytes, so plans of levels count them.
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

/// Those of keys in four runs: of the wide class those that kernels take as they are, and those of upper halves of
/// bytes, which they shift to the right by 4; then of the narrow class likewise. Where both runs of a class have an odd
/// number, the last of the upper halves goes to the end of the first run. parts: of a string of so many bytes.
[[nodiscard]] std::array<std::vector<CodedOperand>, 4> key_operands(const std::vector<CodedPart>& parts, int bytes);
/// Those of values: the two of a pair are of the same piece, and one that has no partner is followed by one without
/// parts, unless it is the last.
[[nodiscard]] std::vector<CodedOperand> value_operands(const std::vector<CodedPart>& parts, int bytes);

/// Operands of a head's keys (values: of its values) whose blocks have so many bits, in whole pairs.
[[nodiscard]] int count_operands(std::span<const std::uint8_t> bits, bool keys);

}  // namespace oscar::reference
