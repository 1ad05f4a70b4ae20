// SPDX-License-Identifier: MIT
// How the decode kernels cut a sequence into pieces that blocks read side by side: on the host and on the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/host_device.hpp"

namespace oscar::cuda {

inline constexpr int kStepTokens = 32;  // that a warp of the INT2 kernel takes at a time

/// What decides how sequences are cut, besides their own lengths.
struct SplitRule {
  int warps;           // of a block
  int history_pieces;  // into which a long history is cut at most
  int least_tokens;    // of a piece of a history that is not short
  int window_pieces;

  /// The most that of() gives; of_coded() may make pieces of the history of what were pieces of the window.
  static constexpr int kMostPieces = 256, kMostWindowPieces = 3;
  static constexpr int kMostSplits = kMostPieces + kMostWindowPieces;

  /// Returns the rule for `units` sequences times KV heads. Few leave no multiprocessor idle only if they are cut
  /// finely; many do not need that, and what a block costs besides its tokens then is the smaller part.
  /// warps_at_once: how many a multiprocessor has registers for, 8 or 16. All pieces of a single sequence find room at
  /// once, since a second round of blocks would only begin when the first ends; where there is room for few, the window
  /// is one of them.
  static SplitRule of(std::int64_t units, int num_kv_heads, int warps_at_once) {
    SplitRule rule{};
    rule.warps = units < 64 ? 8 : 4;
    rule.least_tokens = static_cast<int>(std::clamp<std::int64_t>(8 * units, 512, 2048));
    rule.window_pieces = units < 256 && warps_at_once == 16 ? kMostWindowPieces : 1;
    const int places = 132 * warps_at_once / rule.warps;  // of blocks on an H100
    rule.history_pieces = std::clamp(places / num_kv_heads - rule.window_pieces, 1, kMostPieces);
    return rule;
  }
  /// Returns the rule for the coded cache. Its blocks begin with more work than those of INT2, so that the pieces of
  /// batches are longer; the window of a single sequence is one block, so that its history has more of them.
  static SplitRule of_coded(std::int64_t units, int num_kv_heads, int warps_at_once) {
    SplitRule rule = of(units, num_kv_heads, warps_at_once);
    if (rule.warps == 4) {
      rule.least_tokens = 4096;
    } else {
      rule.history_pieces += rule.window_pieces - 1;
      rule.window_pieces = 1;
    }
    return rule;
  }
};

/// How a sequence is cut: first the window's splits, then the history's.
struct SplitPlan {
  int window_tokens = 0, window_splits = 0;  // tokens of a split
  int history_tokens = 0, history_splits = 0;

  SplitPlan() = default;
  OSCAR_HOST_DEVICE SplitPlan(int length, int window, const SplitRule& rule)
      : window_tokens(multiple(window, rule.window_pieces, 16 * rule.warps)),
        window_splits(window > 0 ? (window + window_tokens - 1) / window_tokens : 1),
        history_tokens(multiple(length, rule.history_pieces, kQuantum)),
        history_splits(0) {
    const int eighth = multiple(length, kShortPieces, kQuantum), some = eighth < kShort ? kShort : eighth;
    const int wanted = some < rule.least_tokens ? some : rule.least_tokens;
    if (history_tokens < wanted) history_tokens = wanted;
    history_splits = (length + history_tokens - 1) / history_tokens;
  }
  OSCAR_HOST_DEVICE int count() const { return window_splits + history_splits; }
  /// First token of a split of the history.
  OSCAR_HOST_DEVICE int history_first(int split) const { return (split - window_splits) * history_tokens; }
  /// No sequence up to these lengths has more blocks.
  static int most(int max_length, int max_window, const SplitRule& rule) {
    const int by_length = std::max(kShortPieces, (max_length + rule.least_tokens - 1) / rule.least_tokens);
    const int by_window = std::max(1, (max_window + 16 * rule.warps - 1) / (16 * rule.warps));
    return std::min(by_length, rule.history_pieces) + std::min(by_window, rule.window_pieces);
  }

 private:
  static constexpr int kQuantum = 2 * kStepTokens, kShort = 512, kShortPieces = 8;

  /// The least multiple of `quantum` of which `count` make `total`.
  OSCAR_HOST_DEVICE static int multiple(int total, int count, int quantum) {
    const int tokens = (total + count - 1) / count;
    return tokens < 1 ? quantum : (tokens + quantum - 1) / quantum * quantum;
  }
};

}  // namespace oscar::cuda
