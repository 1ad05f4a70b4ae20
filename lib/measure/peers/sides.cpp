// SPDX-License-Identifier: MIT
#include "measure/peers/sides.hpp"

namespace oscar::methods {

double groups_per_element(int size, int group) {
  return group == 0 ? 1.0 / size : static_cast<double>((size + group - 1) / group) / size;
}

Bits fixed_bits(double bits) {
  return [=](const KvShape&) { return StoredBits{bits, 0}; };
}

Bits bits_by_token(double codes, int parameters, int group) {
  return [=](const KvShape& shape) {
    return StoredBits{codes, parameters * groups_per_element(shape.head_dim, group)};
  };
}

SideMethod rotated(SideMethod side, int order) {
  const auto turn = [order](const History& history) {
    hadamard(by_head(history), static_cast<std::size_t>(order == 0 ? history.dim : order));
  };
  return {[=, inner = std::move(side.reconstruct)](const History& history) {
            turn(history);
            history.store();
            inner(history);
            turn(history);
          },
          std::move(side.bits)};
}

SideMethod before_rope(SideMethod side) {
  return {[inner = std::move(side.reconstruct)](const History& history) {
            const auto turned = [&](Turn direction) {
              if (history.context.rotary) {
                turn(*history.context.rotary, direction, history.rows, history.heads, history.first_position);
              }
            };
            turned(Turn::kBack);
            inner(history);
            turned(Turn::kForth);
          },
          std::move(side.bits)};
}

}  // namespace oscar::methods
