// SPDX-License-Identifier: MIT
#include "measure/peers/sides.hpp"

#include <cmath>

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

void apply_rope(const History& history, const Rope& rope, bool back) {
  const Matrix tokens = by_token(history);
  const auto dim = static_cast<std::size_t>(history.dim);
  const std::size_t half = static_cast<std::size_t>(rope.dims == 0 ? history.dim : rope.dims) / 2;
  std::vector<double> frequency(half);
  for (std::size_t j = 0; j < half; ++j) {
    frequency[j] = std::pow(rope.theta, -static_cast<double>(j) / static_cast<double>(half));
  }
  parallel_for(tokens.rows, [&](std::size_t t) {
    const double position = static_cast<double>(history.first_position) + static_cast<double>(t);
    for (std::size_t j = 0; j < half; ++j) {
      const auto c = static_cast<float>(std::cos(position * frequency[j]));
      const auto sine = static_cast<float>(std::sin(position * frequency[j]));
      const float s = back ? -sine : sine;
      for (std::size_t head = 0; head < tokens.cols; head += dim) {
        float& x = tokens.at(t, head + j);
        float& y = tokens.at(t, head + j + half);
        const float turned = x * c - y * s;
        y = y * c + x * s;
        x = turned;
      }
    }
  });
}

SideMethod before_rope(SideMethod side) {
  return {[inner = std::move(side.reconstruct)](const History& history) {
            const auto& rope = history.context.rope;
            if (rope) apply_rope(history, *rope, true);
            inner(history);
            if (rope) apply_rope(history, *rope, false);
          },
          std::move(side.bits)};
}

}  // namespace oscar::methods
