// SPDX-License-Identifier: MIT
// The order in which the codecs add, which decides their last bits.
#pragma once

#include <array>
#include <cstddef>

namespace oscar::reference {

/// Returns the sum of term(i) for i below `count`. Terms i, i + 32, … go into strand i; then each strand takes in the
/// one 16 behind it, 8, 4, 2 and 1. Number: double or float, with one rounding an addition.
template <class Number, class Term>
[[nodiscard]] Number strand_sum(std::size_t count, const Term& term) {
  std::array<Number, 32> strands{};
  for (std::size_t i = 0; i < count; ++i) strands[i % 32] += term(i);
  for (std::size_t step = 16; step > 0; step /= 2) {
    for (std::size_t i = 0; i < step; ++i) strands[i] += strands[i + step];
  }
  return strands[0];
}

}  // namespace oscar::reference
