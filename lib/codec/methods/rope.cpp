// SPDX-License-Identifier: MIT
#include "codec/methods/rope.hpp"

#include <cmath>

namespace oscar::methods {

void apply_rope(const History& history, const Rope& rope, bool back) {
  const Matrix tokens = history.by_token();
  const auto dim = static_cast<std::size_t>(history.dim);
  const std::size_t half = static_cast<std::size_t>(rope.dims == 0 ? history.dim : rope.dims) / 2;
  std::vector<double> frequency(half);
  for (std::size_t j = 0; j < half; ++j) {
    frequency[j] = std::pow(rope.theta, -static_cast<double>(j) / static_cast<double>(half));
  }
  parallel_for(tokens.rows, [&](std::size_t t) {
    const double position = static_cast<double>(history.first_position) + static_cast<double>(t);
    for (std::size_t j = 0; j < half; ++j) {
      const double angle = position * frequency[j];
      const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(back ? -angle : angle));
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
