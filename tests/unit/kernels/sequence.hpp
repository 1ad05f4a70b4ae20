// SPDX-License-Identifier: MIT
// A sequence of one layer for tests of held sequences: rows, transforms, positions, score rules, and codecs of every
// kind.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "unit/kernels/samples.hpp"

namespace oscar::test {

/// A sequence and its transforms, with a read side of its own for keys and for values of another size than keys.
struct Sequence {
  Shape shape;
  int heads, kv_heads;
  std::vector<std::int64_t> positions;
  Transform key, value;
  Tensor q, k, v, decoded_k, decoded_v;
  std::optional<ScoreRule> rule;

  /// positions: of the queries; none: one at each key. value_dim: 0 for that of the keys.
  Sequence(const Shape& shape_, int heads_, int kv_heads_, std::vector<std::int64_t> positions_, int value_dim = 0);
  /// The input that holds it; rotated: with the transforms, else with the histories of their own, if there are.
  [[nodiscard]] SequenceInput input(Precision precision, bool rotated = true) const;
  /// Without transforms, the history of the keys, or of both sides, is rows of their own.
  [[nodiscard]] Sequence with_history(bool of_values) && {
    decoded_k = activations({DType::kF32, shape.head_dim, shape.tokens}, kv_heads, 47);
    if (of_values) decoded_v = activations({DType::kF32, value.rotation.dim, shape.tokens}, kv_heads, 48);
    return std::move(*this);
  }
  [[nodiscard]] std::size_t out_size() const {
    return static_cast<std::size_t>(q.shape[0]) * static_cast<std::size_t>(heads * value.rotation.dim);
  }
};

/// Adds a prefill, a few queries (two of them at one position), and a decode step.
void add_sequences(const Shape& shape, std::vector<Sequence>& all);

/// Both sides, one side, none; packed rows of the coded cache; whole rows and groups, with and without clipping, 4
/// levels and more.
[[nodiscard]] std::vector<HistoryCodecs> codecs_for(const Sequence& s);
/// A codec of the coded cache: coded_formats().
[[nodiscard]] HistoryCodec coded(int kv_heads, int dim);
/// Score rules with a soft cap, a short reach, sinks, and all of them. `heads`: of the queries.
[[nodiscard]] std::vector<ScoreRule> score_rules(int heads);

inline const std::vector<Windows> kWindows{{4, 16}, {0, 0}, {0, 40}, {10, 0}, {64, 256}};
inline const std::vector<Windows> kSmallWindows{{4, 7}, {0, 0}};

}  // namespace oscar::test
