// SPDX-License-Identifier: MIT
// What every backend does with its arguments before and after the arithmetic: checks, defaults, and sums of symmetric
// results. Non-goal: arithmetic that a backend could do differently.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/mixed_sequence.hpp"

namespace oscar {

/// Throws UsageError if the grid has no such levels, or parameters cannot be stored so.
void check_codec(const RowCodec& codec);
/// Returns the size of a group. Throws std::logic_error if it does not fit head_dim.
[[nodiscard]] int checked_group_size(const RowCodec& codec, int head_dim);
/// Throws std::logic_error unless heads have no clip ratios, and no coded formats, of their own, or each has one.
void check_heads(const HistoryCodec& codec, int kv_heads);
/// "lloyd-max" on standardised values: its outer thresholds (the middle one is 0), and the distance of its levels.
inline constexpr double kLloydMaxThreshold = 0.98107, kLloydMaxStep = 1.16 * (2 * 1.50956 / 3);

/// Where scales and zeros stored as float16 saturate.
inline constexpr float kLargestF16 = 65504.0F;

/// Strands of a sum: i and i + kStrands go to the same one, and strands are added in pairs at distances 16, 8, 4, 2, 1.
/// One order for all backends, so that their sums agree to the bit.
inline constexpr std::size_t kStrands = 32;
template <class Term>
[[nodiscard, gnu::always_inline]] inline double strand_sum(std::size_t count, const Term& term) {
  std::array<double, kStrands> strands{};
  std::size_t begin = 0;
  for (; begin + kStrands <= count; begin += kStrands) {
    for (std::size_t i = 0; i < kStrands; ++i) strands[i] += term(begin + i);
  }
  for (std::size_t i = begin; i < count; ++i) strands[i - begin] += term(i);
  for (std::size_t step = kStrands / 2; step > 0; step /= 2) {
    for (std::size_t i = 0; i < step; ++i) strands[i] += strands[i + step];
  }
  return strands[0];
}

/// Index of the clip threshold among the magnitudes in ascending order.
[[nodiscard]] int clip_rank(double clip_ratio, int head_dim);

/// Positions of the queries among the keys, given (one for each query) or implied: query i stands at key i.
[[nodiscard]] std::vector<std::int64_t> resolve_positions(std::span<const std::int64_t> given, std::int64_t queries);
/// Throws std::logic_error unless there are `queries` positions, ascending, in [0, keys).
void check_positions(std::span<const std::int64_t> positions, std::int64_t queries, std::int64_t keys);
/// The codecs of one side without repetition, and which of them each candidate reads.
struct CodecChoice {
  std::vector<std::optional<HistoryCodec>> codecs;
  std::vector<std::size_t> of_candidate;

  /// How many are not "none".
  [[nodiscard]] std::size_t decoding() const;
};
[[nodiscard]] CodecChoice choose_codecs(std::span<const HistoryCodecs> candidates,
                                        std::optional<HistoryCodec> HistoryCodecs::*side);

/// Throws std::logic_error if shapes or positions of a sequence do not fit together.
void check_sequence(const SequenceInput& input);

/// Throws NumericalError if an entry of an eigenproblem is not finite.
void check_finite(std::span<const double> symmetric);

/// Adds the upper triangle of `partial` (dim, dim) to both triangles of `gram`.
void add_symmetric(std::span<const double> partial, std::span<double> gram, int dim);

}  // namespace oscar
