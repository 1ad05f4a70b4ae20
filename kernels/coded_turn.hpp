// SPDX-License-Identifier: MIT
// How packed rows of keys before RoPE become keys, and the way back: what the kernels of oscar/coded_pack.h and
// oscar/coded_attention.h know of each pair of channels that turn together, and the arithmetic of one pair, which
// kernels and the host share.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/host_device.hpp"
#include "kernels/rotary.hpp"
#include "oscar/coded_pack.h"

namespace oscar {

/// A pair of channels of a key, and the coordinates (y_0, y_1) of its packed row that are made of them alone. Where
/// (x_0, x_1) is what the channels have besides their mean, turned back as kernels/rotary.hpp says, y_c = sum over i of
/// x_i basis[i][c], and x_i = sum over c of y_c inverse[c][i].
struct alignas(16) CodedTurnPair {
  std::int16_t coordinate[2], channel[2];
  float frequency[2];  // in radians a position: of texts within the near context, and beyond it
  float mean[2];
  float basis[2][2], inverse[2][2];
  std::int32_t is_fast;  // 1: see is_fast()
};

/// Cosine and sine of position times frequency, a product that is rounded to float32 once, as models compute it. Whole
/// turns are taken off in float64, so that what is left is small, and exact enough for the fast functions of a GPU.
OSCAR_HOST_DEVICE inline PairValues cosine_and_sine(std::int32_t position, float frequency) {
  constexpr double kTurn = 6.283185307179586;
  const float angle = static_cast<float>(position) * frequency;
  const auto rest = static_cast<float>(angle - rint(angle * (1 / kTurn)) * kTurn);
  PairValues out{};
#ifdef __CUDA_ARCH__
  __sincosf(rest, &out.second, &out.first);
#else
  out = {std::cos(rest), std::sin(rest)};
#endif
  return out;
}

/// The pair's channels of the key at `position` of the coordinates of a packed row.
OSCAR_HOST_DEVICE inline PairValues turned_pair(const CodedTurnPair& pair, PairValues y, std::int32_t position,
                                                const oscar_coded_turned& how) {
  const std::int32_t was = position - how.moved;
  const float frequency = pair.frequency[how.was_far != 0 ? 1 : 0];
  const bool is_fast = pair.is_fast != 0;
  const PairValues angle = cosine_and_sine(is_fast ? was : turn_anchor(was), frequency);
  PairValues mean{pair.mean[0], pair.mean[1]};
  if (is_fast) mean = turned_by(angle, mean.first, mean.second);
  PairValues k{y.first * pair.inverse[0][0] + y.second * pair.inverse[1][0] + mean.first,
               y.first * pair.inverse[0][1] + y.second * pair.inverse[1][1] + mean.second};
  if (!is_fast) k = turned_by(angle, k.first, k.second);
  if (how.moved == 0 && how.was_far == how.is_far) return k;
  const PairValues back = cosine_and_sine(was, frequency);
  const PairValues forth = cosine_and_sine(position, pair.frequency[how.is_far != 0 ? 1 : 0]);
  k = turned_by({back.first, -back.second}, k.first, k.second);
  return turned_by(forth, k.first, k.second);
}

/// The inverse: the pair's coordinates of the packed row of its channels of a key.
OSCAR_HOST_DEVICE inline PairValues unturned_pair(const CodedTurnPair& pair, PairValues k, std::int32_t position,
                                                  int is_far) {
  const bool is_fast = pair.is_fast != 0;
  const PairValues angle =
      cosine_and_sine(is_fast ? position : turn_anchor(position), pair.frequency[is_far != 0 ? 1 : 0]);
  PairValues mean{pair.mean[0], pair.mean[1]};
  if (is_fast) {
    mean = turned_by(angle, mean.first, mean.second);
  } else {
    k = turned_by({angle.first, -angle.second}, k.first, k.second);
  }
  const float x0 = k.first - mean.first, x1 = k.second - mean.second;
  return {x0 * pair.basis[0][0] + x1 * pair.basis[1][0], x0 * pair.basis[0][1] + x1 * pair.basis[1][1]};
}

/// (num_kv_heads, head_dim / 2), of each head first those that are fast. Throws std::invalid_argument that says what is
/// wrong.
[[nodiscard]] std::vector<CodedTurnPair> coded_turn_pairs(const oscar_coded_turn& turn);

}  // namespace oscar
