// SPDX-License-Identifier: MIT
// What attend() and compare_attention() work on: rows in transformed coordinates, the history decoded already.
#pragma once

#include <optional>
#include <vector>

#include "kernels/types.hpp"

namespace oscar::cpu {

/// One sequence of one layer as a mixed-precision server sees it, in transformed coordinates.
/// q is (num_queries, Hq, d); the keys and values are (num_keys, Hkv, d), once as stored in the windows and once
/// decoded.
struct MixedAttention {
  HeadsView q;
  HeadsView window_k, history_k;
  HeadsView window_v, history_v;
  /// Position of each query among the keys, ascending; empty: query i stands at key i.
  std::span<const std::int64_t> query_positions;
  Windows windows;
  /// Maps outputs back: o = o' * native_from_rotated; stacks of 1 or Hkv matrices (d, d). Empty: none.
  const MatrixStack* native_from_rotated = nullptr;
  Precision precision = Precision::kServing;
  const ScoreRule* scores = nullptr;  // null: a softmax alone
};

/// Ways to read the history of keys, or of values, in place of that of a MixedAttention.
struct Histories {
  std::vector<std::optional<HeadsView>> rows;  // (num_keys, Hkv, d), decoded; none: as the windows store it
  std::vector<std::size_t> of_candidate;       // which of them each candidate reads
};

/// Positions of the queries among the keys, given or implied.
[[nodiscard]] std::vector<std::int64_t> resolve_positions(const MixedAttention& mixed);
/// Throws std::logic_error if shapes or positions do not fit together.
void check_mixed(const MixedAttention& mixed);
/// Likewise for what compare_attention() compares.
void check_exact(const QkvView& exact, const MixedAttention& mixed);

}  // namespace oscar::cpu
