// SPDX-License-Identifier: MIT
// Rotary position embedding (RoPE, arXiv 2104.09864) of the keys of a layer, as data: which channels are pairs, and how
// far each pair turns from one position to the next. The channels (x, y) of a pair with frequency f become, at position
// j, (x cos(f j) - y sin(f j), x sin(f j) + y cos(f j)).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace oscar {

/// Whether the coded cache leaves a pair of these frequencies as it stands: what a key has there besides its mean is
/// not turned back by its position, since few positions smear it anyhow, and so a decode kernel need not turn it
/// either. A pair that is not fast turns by at most 1/16 radian from the middle of 64 tokens to their ends.
inline constexpr float kFastFrequency = 0x1p-9F;  // in radians a position
[[nodiscard]] inline bool is_fast(float frequency, float far_frequency) {
  return std::max(std::abs(frequency), std::abs(far_frequency)) > kFastFrequency;
}

struct Rotary {
  std::vector<int> pairs;        // (d / 2, 2): every channel of a head once; those that do not turn are paired, too
  std::vector<float> frequency;  // (d / 2), in radians a position; 0: the pair does not turn
  /// LongRoPE (arXiv 2402.13753): texts of more than near_context tokens turn with far_frequency. Else empty and 0.
  std::vector<float> far_frequency;
  std::int64_t near_context = 0;
  friend bool operator==(const Rotary&, const Rotary&) = default;

  [[nodiscard]] int dim() const { return static_cast<int>(pairs.size()); }
  [[nodiscard]] bool is_fast(std::size_t pair) const {
    return oscar::is_fast(frequency[pair], far_frequency.empty() ? 0 : far_frequency[pair]);
  }
  /// Those of a text that ends before position `end`.
  [[nodiscard]] std::span<const float> frequencies(std::int64_t end) const {
    return !far_frequency.empty() && end > near_context ? far_frequency : frequency;
  }
};

/// Returns the pairs of a head of `dim` channels whose first `turning` turn, which is even: (i, i + turning / 2), or
/// (2 i, 2 i + 1) where they are interleaved. The others are (i, i + 1).
[[nodiscard]] std::vector<int> rotary_pairs(int dim, int turning, bool interleaved);
/// Returns plain RoPE over whole heads, whose pair i turns by theta^(-2 i / dim).
[[nodiscard]] Rotary plain_rotary(double theta, int dim);

/// {"pairs": [[i, j], …], "frequency": […], "fast_frequency": kFastFrequency}, and of LongRoPE "far_frequency" and
/// "near_context".
[[nodiscard]] Json to_json(const Rotary& rotary);
/// Throws DataError unless pairs have every channel of a head once, every pair a finite frequency, and the same pairs
/// are fast as here.
[[nodiscard]] Rotary rotary_from_json(const Json& json, const std::string& where);

enum class Turn { kForth, kBack };
/// Turns rows (tokens, heads, d), the first of which stands at position `first`, in place: as the model does, or back.
/// Angles are rounded to float32 once, as models compute them.
void turn(const Rotary& rotary, Turn direction, std::span<float> rows, int heads, std::int64_t first);
/// Turns what rows before RoPE have besides their means, in fast pairs alone; the means, (heads, d), stay as they are.
/// kForth gives the mean and what the coded cache packs, kBack rows before RoPE again.
void turn_fast(const Rotary& rotary, Turn direction, std::span<const double> means, std::span<float> rows, int heads,
               std::int64_t first);

}  // namespace oscar
