// SPDX-License-Identifier: MIT
// How the coded decode kernel divides its work, by what a multiprocessor has room for: registers and shared memory.
#pragma once

#include <algorithm>

#include "kernels/cuda/coded_layout.hpp"

namespace oscar::cuda {

/// What the coded decode kernel is compiled for besides the head size, and what follows for a block.
struct CodedTiling {
  static constexpr int kFew = 8, kSome = 12;  // operands

  int key_tiles;  // of four query heads each
  int operands;   // of the values, at most: kFew, kSome or kMostValueOperands

  /// Returns the tiling with the fewest key tiles and operands that suffice. Heads of 64 channels need 10 operands at
  /// most; heads of 256 channels have a tiling for the most operands alone.
  static constexpr CodedTiling of(int head_dim, int heads, int value_operands) {
    const int needed = head_dim == 256 ? kMostValueOperands : value_operands;
    return {(heads + 3) / 4, needed <= kFew ? kFew : needed <= kSome ? kSome : kMostValueOperands};
  }
  /// Warps that a multiprocessor's registers have room for.
  [[nodiscard]] constexpr int warps_at_once() const { return operands <= kSome ? 16 : 8; }
  /// Tokens that a warp takes at a time: 64 where there are registers for their scores.
  [[nodiscard]] constexpr int step() const { return key_tiles == 1 || operands <= kFew ? 64 : 32; }
  /// Warps that share their tokens.
  [[nodiscard]] constexpr int team() const { return key_tiles <= 2 ? 1 : 4; }
  /// Steps whose copies a warp has room for. With one, keys and values of the next step are copied as soon as those of
  /// a step have been read; a second one would take room that other warps need. Teams wait for each other more often
  /// in steps of 32 tokens, whose copies are half as large: they have two.
  [[nodiscard]] constexpr int stages() const { return team() == 1 || step() == 64 ? 1 : 2; }
  /// Bytes of shared memory of a step's copies: its rows' planes and scales.
  [[nodiscard]] constexpr int stage_bytes(int planes) const { return step() * (16 * planes + 4); }
  /// Bytes of a warp's step of scales as float32 and of weights: 16 bytes a token each, the weights for each class of
  /// scales and 8 heads, or for both classes of 4 heads.
  [[nodiscard]] constexpr int weights_bytes() const {
    const int sets = key_tiles == 1 ? 1 : key_tiles == 2 ? 2 : 4;
    return 16 * step() * (1 + sets);
  }
  /// Bytes of a warp: copies, then scales and weights.
  [[nodiscard]] constexpr int warp_bytes(int planes) const { return stages() * stage_bytes(planes) + weights_bytes(); }
  /// Warps of a block that shared memory of `bytes` has room for: whole teams, one at least and `most` warps at most.
  [[nodiscard]] constexpr int warps(int bytes, int planes, int most) const {
    return team() * std::clamp(bytes / warp_bytes(planes) / team(), 1, most / team());
  }
  /// Returns this tiling; where its steps would halve the warps of a block, one of shorter steps, which take less room.
  [[nodiscard]] constexpr CodedTiling fitted(int bytes, int planes, int most) const {
    const CodedTiling shorter{key_tiles, kSome};
    const bool halves = 2 * warps(bytes, planes, most) <= shorter.warps(bytes, planes, most);
    return operands == kFew && halves ? shorter : *this;
  }
};

}  // namespace oscar::cuda
