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
#include "kernels/host_device.hpp"

namespace oscar {

// How the coded cache stores keys before RoPE. Of a pair of channels that is fast it keeps what a key has there besides
// its mean, which turns, as it stands: few positions smear that anyhow. Other pairs it turns back, mean and all, by the
// middle of the kTurnBlock positions that the key is among. From there they turn by at most 1/4 radian, so that a
// decode kernel turns queries once for all keys of a block, and no key.

inline constexpr float kFastFrequency = 0x1p-9F;  // in radians a position
[[nodiscard]] inline bool is_fast(float frequency, float far_frequency) {
  return std::max(std::abs(frequency), std::abs(far_frequency)) > kFastFrequency;
}
inline constexpr int kTurnBlock = 256;
/// The middle of the block of a position, which is not negative.
template <class Position>
[[nodiscard]] OSCAR_HOST_DEVICE constexpr Position turn_anchor(Position position) {
  return position / kTurnBlock * kTurnBlock + kTurnBlock / 2;
}

/// Of a pair of channels; of an angle its cosine and sine.
struct PairValues {
  float first, second;
};
OSCAR_HOST_DEVICE inline PairValues turned_by(PairValues angle, float x, float y) {
  return {x * angle.first - y * angle.second, x * angle.second + y * angle.first};
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

/// {"pairs": [[i, j], …], "frequency": […], "fast_frequency": kFastFrequency, "turn_block": kTurnBlock}, and of
/// LongRoPE "far_frequency" and "near_context".
[[nodiscard]] Json to_json(const Rotary& rotary);
/// Throws DataError unless pairs have every channel of a head once, every pair a finite frequency, and keys
/// are stored as here.
[[nodiscard]] Rotary rotary_from_json(const Json& json, const std::string& where);

enum class Turn { kForth, kBack };
/// Turns rows (tokens, heads, d), the first of which stands at position `first`, in place: as the model does, or back.
/// Angles are rounded to float32 once, as models compute them.
void turn(const Rotary& rotary, Turn direction, std::span<float> rows, int heads, std::int64_t first);
/// kBack: keys, rows as above, become what the coded cache stores of them but for its basis; kForth: and keys again.
/// means: (heads, d), of keys before RoPE.
void turn_stored(const Rotary& rotary, Turn direction, std::span<const double> means, std::span<float> rows, int heads,
                 std::int64_t first);

}  // namespace oscar
