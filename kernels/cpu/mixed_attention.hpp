// SPDX-License-Identifier: MIT
// What attend() and compare_attention() work on: one sequence of one layer as a mixed-precision server holds it, in
// transformed coordinates.
#pragma once

#include <optional>
#include <vector>

#include "kernels/cpu/packed_history.hpp"
#include "kernels/types.hpp"

namespace oscar::cpu {

/// The history of keys, or of values: packed rows, or rows that somebody else decoded. One of the two is set.
struct HistoryRows {
  const PackedHistory* packed = nullptr;
  HeadsView decoded = {};  // (num_keys, Hkv, d)

  [[nodiscard]] std::int64_t tokens() const { return packed != nullptr ? packed->tokens() : decoded.num_tokens; }
  /// Reads the row of one (token, head). Precision::kServing rounds what is unpacked to bfloat16.
  void row(std::int64_t token, int head, Precision precision, std::span<float> out) const {
    if (packed != nullptr) {
      packed->decode(token, head, precision, out);
    } else {
      decoded.row(token, head, out);
    }
  }
};

/// q is (num_queries, Hq, d); keys and values are (num_keys, Hkv, d) as the windows store them, and once more as the
/// history reads them.
struct MixedAttention {
  HeadsView q;
  HeadsView window_k, window_v;
  std::optional<HistoryRows> history_k, history_v;  // none: as the windows store it
  /// Position of each query among the keys, ascending; empty: query i stands at key i.
  std::span<const std::int64_t> query_positions;
  Windows windows;
  /// Maps outputs back: o = o' * native_from_rotated; stacks of 1 or Hkv matrices (d, d). Null: none.
  const MatrixStack* native_from_rotated = nullptr;
  Precision precision = Precision::kServing;
  const ScoreRule* scores = nullptr;  // null: a softmax alone
};

/// Ways to read the history of keys, or of values, in place of that of a MixedAttention.
struct Histories {
  std::vector<std::optional<HistoryRows>> rows;  // none: as the windows store it
  std::vector<std::size_t> of_candidate;         // which of them each candidate reads
};

/// A sequence with the candidates that are compared with exact attention.
struct ComparedAttention {
  MixedAttention mixed;  // whose own history is not read
  Histories keys, values;
};

/// Returns the positions of the queries among the keys, given or implied.
[[nodiscard]] std::vector<std::int64_t> resolve_positions(const MixedAttention& mixed);
/// Throws std::logic_error if shapes or positions do not fit together.
void check_mixed(const MixedAttention& mixed);
/// Throws std::logic_error if what compare_attention() compares with has other shapes.
void check_exact(const QkvView& exact, const MixedAttention& mixed);

}  // namespace oscar::cpu
