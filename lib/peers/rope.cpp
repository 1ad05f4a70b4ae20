// SPDX-License-Identifier: MIT
#include "peers/rope.hpp"

#include <cmath>
#include <tuple>

namespace oscar::methods {
namespace {

struct Turn {
  float cosine, sine;
};

/// (tokens, half). Kept for the next call of this thread, which mostly asks for the same.
const std::vector<Turn>& turns_of(double theta, std::size_t half, std::int64_t first, std::size_t tokens) {
  thread_local std::vector<Turn> turns;
  thread_local std::tuple<double, std::size_t, std::int64_t> known{0, 0, 0};
  if (known == std::tuple{theta, half, first} && turns.size() >= tokens * half) return turns;
  turns.resize(tokens * half);
  std::vector<double> frequency(half);
  for (std::size_t j = 0; j < half; ++j) {
    frequency[j] = std::pow(theta, -static_cast<double>(j) / static_cast<double>(half));
  }
  parallel_for(tokens, [&, out = turns.data()](std::size_t t) {
    const double position = static_cast<double>(first) + static_cast<double>(t);
    for (std::size_t j = 0; j < half; ++j) {
      const double angle = position * frequency[j];
      out[t * half + j] = {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
    }
  });
  known = {theta, half, first};
  return turns;
}

}  // namespace

void apply_rope(const History& history, const Rope& rope, bool back) {
  const Matrix tokens = by_token(history);
  const std::int64_t first = history.first_position;
  const auto dim = static_cast<std::size_t>(history.dim);
  const std::size_t half = static_cast<std::size_t>(rope.dims == 0 ? history.dim : rope.dims) / 2;
  const std::vector<Turn>& turns = turns_of(rope.theta, half, first, tokens.rows);
  parallel_for(tokens.rows, [&](std::size_t t) {
    for (std::size_t j = 0; j < half; ++j) {
      const Turn& turn = turns[t * half + j];
      const float c = turn.cosine, s = back ? -turn.sine : turn.sine;
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
