// SPDX-License-Identifier: MIT
// What attend() and compare_attention() work on, one sequence of one layer as a mixed-precision server holds it in
// transformed coordinates, and what they share: attention of one block of queries of one head over such rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/threads.hpp"
#include "kernels/cpu/products.hpp"
#include "kernels/cpu/row_codec.hpp"
#include "kernels/types.hpp"

namespace oscar::cpu {

// What attend() and compare_attention() work on: one sequence of one layer as a mixed-precision server holds it, in
// transformed coordinates.

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

// Attention of one block of queries of one head over keys and values of mixed precision: what attend() and
// compare_attention() share. T is float (speed) or double (reference).
// Query i sees key j <= i exactly ("window") if j < sink or j > i - recent, and quantised ("history") otherwise. For a
// block of queries at positions first..last the keys fall into
//   [0, sink)  window   [sink, tail)  history of all   [tail, history_end)  history of some   [history_end, keys)
//   window
// so that two products cover everything once, but for the third range.

/// Queries of a block: few enough for its scores to stay in cache.
inline constexpr std::int64_t kQueriesPerBlock = 32;

/// One head as a contiguous matrix (num_tokens, head_dim).
template <class T>
std::vector<T> load_head(HeadsView view, int head) {
  std::vector<T> rows(static_cast<std::size_t>(view.num_tokens) * view.head_dim);
  if constexpr (sizeof(T) == sizeof(double)) {
    view.head_rows(0, view.num_tokens, head, rows.data());
  } else {
    const auto dim = static_cast<std::size_t>(view.head_dim);
    for (std::size_t t = 0; t < static_cast<std::size_t>(view.num_tokens); ++t) {
      view.row(static_cast<std::int64_t>(t), head, std::span(rows).subspan(t * dim, dim));
    }
  }
  return rows;
}

/// The history of one head as a contiguous matrix (num_tokens, dim), decoded a row at a time; empty if it is read as
/// the windows store it.
template <class T>
std::vector<T> load_history(const std::optional<HistoryRows>& history, int head, std::int64_t dim,
                            Precision precision) {
  constexpr std::int64_t kRowsPerTask = 1024;
  if (!history) return {};
  const std::int64_t tokens = history->tokens();
  std::vector<T> rows(static_cast<std::size_t>(tokens * dim));
  parallel_for(static_cast<std::size_t>((tokens + kRowsPerTask - 1) / kRowsPerTask), [&](std::size_t task) {
    std::vector<float> row(static_cast<std::size_t>(dim));
    const std::int64_t begin = static_cast<std::int64_t>(task) * kRowsPerTask;
    for (std::int64_t t = begin; t < std::min(begin + kRowsPerTask, tokens); ++t) {
      history->row(t, head, precision, row);
      std::copy(row.begin(), row.end(), rows.begin() + t * dim);
    }
  });
  return rows;
}

struct KeyRanges {
  std::int64_t sink, tail, history_end, keys;

  KeyRanges(std::span<const std::int64_t> positions, const Windows& windows) {
    keys = positions.back() + 1;
    sink = std::min<std::int64_t>(windows.sink, keys);
    tail = std::clamp(positions.front() - windows.recent + 1, sink, keys);
    history_end = std::clamp(positions.back() - windows.recent + 1, tail, keys);
  }
  /// First key of the recent window of a query.
  [[nodiscard]] std::int64_t split(std::int64_t position, const Windows& windows) const {
    return std::clamp(position - windows.recent + 1, tail, history_end);
  }
};

/// Keys or values of one KV head, once as stored in the windows and once as the history reads them; somebody else owns
/// them.
template <class T>
struct MixedRows {
  MixedRows(const std::vector<T>& stored, const std::vector<T>& decoded, std::int64_t head_dim)
      : window(stored), history(decoded.empty() ? stored : decoded), dim(head_dim) {}

  const std::vector<T>& window;
  const std::vector<T>& history;
  std::int64_t dim;
  [[nodiscard]] const T* window_row(std::int64_t i) const { return window.data() + i * dim; }
  [[nodiscard]] const T* history_row(std::int64_t i) const { return history.data() + i * dim; }
};

/// scores (queries, ranges.keys) = scale * q k^T, each pair in the precision that the windows give it.
template <class T>
void mixed_scores(const T* q, const MixedRows<T>& k, std::span<const std::int64_t> positions, const Windows& windows,
                  double scale, std::vector<T>& scores) {
  const KeyRanges r(positions, windows);
  const auto n = static_cast<std::int64_t>(positions.size());
  scores.resize(static_cast<std::size_t>(n * r.keys));
  const auto product = [&](const T* rows, std::int64_t begin, std::int64_t end, T* out, std::int64_t ld) {
    gemm({.m = n, .n = end - begin, .k = k.dim, .b = Transpose::kYes, .alpha = scale}, q, k.dim, rows, k.dim, out, ld);
  };
  product(k.window_row(0), 0, r.sink, scores.data(), r.keys);
  product(k.history_row(r.sink), r.sink, r.tail, scores.data() + r.sink, r.keys);
  product(k.window_row(r.tail), r.tail, r.keys, scores.data() + r.tail, r.keys);
  const std::int64_t shared = r.history_end - r.tail;
  std::vector<T> quantised(static_cast<std::size_t>(n * shared));
  product(k.history_row(r.tail), r.tail, r.history_end, quantised.data(), shared);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t count = r.split(positions[static_cast<std::size_t>(i)], windows) - r.tail;
    std::copy_n(quantised.data() + i * shared, count, scores.data() + i * r.keys + r.tail);
  }
}

/// out (queries, dim) = weights (queries, ranges.keys) times the values in the precision that the windows give each
/// pair. Meanwhile weights are zero where the history of some has them; then they are what they were.
template <class T>
void mixed_outputs(std::vector<T>& weights, const MixedRows<T>& v, std::span<const std::int64_t> positions,
                   const Windows& windows, T* out) {
  const KeyRanges r(positions, windows);
  const auto n = static_cast<std::int64_t>(positions.size());
  const std::int64_t shared = r.history_end - r.tail;
  std::vector<T> quantised(static_cast<std::size_t>(n * shared), T{0});
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t count = r.split(positions[static_cast<std::size_t>(i)], windows) - r.tail;
    T* row = weights.data() + i * r.keys + r.tail;
    std::copy_n(row, count, quantised.data() + i * shared);
    std::fill_n(row, count, T{0});
  }
  std::fill_n(out, n * v.dim, T{0});
  const auto product = [&](const T* w, std::int64_t ld, const T* rows, std::int64_t count) {
    if (count == 0) return;
    gemm({.m = n, .n = v.dim, .k = count, .accumulate = true}, w, ld, rows, v.dim, out, v.dim);
  };
  product(weights.data(), r.keys, v.window_row(0), r.sink);
  product(weights.data() + r.sink, r.keys, v.history_row(r.sink), r.tail - r.sink);
  product(weights.data() + r.tail, r.keys, v.window_row(r.tail), r.keys - r.tail);
  product(quantised.data(), shared, v.history_row(r.tail), shared);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t count = r.split(positions[static_cast<std::size_t>(i)], windows) - r.tail;
    std::copy_n(quantised.data() + i * shared, count, weights.data() + i * r.keys + r.tail);
  }
}

/// Maps outputs (queries, dim) back to native coordinates. Serving rounds the outputs and the matrix (an empty one:
/// none) to bfloat16 first; the product stays unrounded.
template <class T>
void restore_outputs(std::vector<T>& outputs, std::int64_t queries, std::int64_t dim, std::span<const T> matrix,
                     Precision precision) {
  if (precision == Precision::kServing) {
    for (T& value : outputs) value = round_to_bf16(static_cast<float>(value));
  }
  if (matrix.empty()) return;
  std::vector<T> native(outputs.size());
  gemm({.m = queries, .n = dim, .k = dim}, outputs.data(), dim, matrix.data(), dim, native.data(), dim);
  outputs.swap(native);
}

/// The matrix that restore_outputs() needs for a KV head; empty if there is none.
template <class T>
std::vector<T> restoring_matrix(const MixedAttention& mixed, int kv_head) {
  if (mixed.native_from_rotated == nullptr) return {};
  const std::span<const double> matrix = mixed.native_from_rotated->for_head(kv_head);
  std::vector<T> values(matrix.begin(), matrix.end());
  if (mixed.precision == Precision::kServing) {
    for (T& value : values) value = round_to_bf16(static_cast<float>(value));
  }
  return values;
}

/// Runs task(kv_head) for every KV head: as many in parallel as keep all threads busy to the end, and the rest one
/// after the other, so that their blocks can run in parallel.
inline void for_each_kv_head(int count, const std::function<void(int)>& task) {
  const int side_by_side = count - count % num_threads();
  parallel_for(static_cast<std::size_t>(side_by_side), [&](std::size_t head) { task(static_cast<int>(head)); });
  for (int head = side_by_side; head < count; ++head) task(head);
}

}  // namespace oscar::cpu
