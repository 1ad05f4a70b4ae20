// SPDX-License-Identifier: MIT
// What methods are put together from: how one side, keys or values, of a history is quantised and at what bits.
#pragma once

#include "measure/kv_method.hpp"
#include "measure/peers/matrix.hpp"

namespace oscar::methods {

/// Returns the rows of a history as a matrix (tokens * heads, dim).
[[nodiscard]] inline Matrix by_head(const History& history) {
  return {history.rows, static_cast<std::size_t>(history.tokens * history.heads),
          static_cast<std::size_t>(history.dim)};
}
/// Returns the rows of a history as a matrix (tokens, heads * dim).
[[nodiscard]] inline Matrix by_token(const History& history) {
  return {history.rows, static_cast<std::size_t>(history.tokens),
          static_cast<std::size_t>(history.heads) * static_cast<std::size_t>(history.dim)};
}

/// Groups of `group` (0: all of them) that `size` values are cut into, over `size`.
[[nodiscard]] double groups_per_element(int size, int group);

using Bits = std::function<StoredBits(const KvShape&)>;
/// Nothing but codes and fixed formats.
[[nodiscard]] Bits fixed_bits(double bits);
/// codes, and `parameters` numbers for each group of channels of a (token, head) row.
[[nodiscard]] Bits bits_by_token(double codes, int parameters, int group = 0);

/// Quantises groups of neighbouring channels of each (token, head) row; 0: the whole row.
template <class Quantizer>
[[nodiscard]] SideMethod by_token(Quantizer quantizer, int group, Bits bits) {
  return {[=](const History& history) {
            along_rows(by_head(history), static_cast<std::size_t>(group == 0 ? history.dim : group), quantizer);
          },
          std::move(bits)};
}

/// `side` on rows times Hadamard blocks of at most `order` (0: the largest that fits a head); the result is turned
/// back.
[[nodiscard]] SideMethod rotated(SideMethod side, int order = 0);

/// `side` on keys as they were before RoPE; the result is turned again. Where nothing tells how keys turn, on keys as
/// they are.
[[nodiscard]] SideMethod before_rope(SideMethod side);

}  // namespace oscar::methods
