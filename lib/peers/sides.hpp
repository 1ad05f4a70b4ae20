// SPDX-License-Identifier: MIT
// What methods are put together from: a quantiser of a group of values, which it replaces by what a reader of the codes
// gets; the groups that share parameters; a Hadamard before and after.
#pragma once

#include "peers/sequence_method.hpp"

namespace oscar::methods {

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

/// Quantises, channel by channel, groups of `group` tokens, counted from the first token of the history.
template <class Quantizer>
[[nodiscard]] SideMethod by_channel(Quantizer quantizer, int group, Bits bits) {
  return {[=](const History& history) {
            along_columns(by_token(history), static_cast<std::size_t>(group),
                          [&](std::span<float> values, std::size_t) { quantizer(values); });
          },
          std::move(bits)};
}

/// `side` on rows times Hadamard blocks of at most `order` (0: the largest that fits a head); the result is turned
/// back.
[[nodiscard]] SideMethod rotated(SideMethod side, int order = 0);

}  // namespace oscar::methods
