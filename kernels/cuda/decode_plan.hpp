// SPDX-License-Identifier: MIT
// How the coded decode kernel cuts its work: sequences into splits, and splits into steps. Read without CUDA, too.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/coded_layout.hpp"
#include "kernels/host_device.hpp"

namespace oscar::cuda {

// How the kernel cuts a sequence into pieces that blocks read side by side: on the host and on the device.

/// What decides how sequences are cut, besides their own lengths.
struct SplitRule {
  int warps;           // of a block
  int history_pieces;  // into which a long history is cut at most
  int short_pieces;    // into which a history is cut at most if they then have no more than least_tokens
  int least_tokens;    // of a piece of a longer history
  int window_pieces;

  static constexpr int kMostPieces = 256, kMostWindowPieces = 3, kMostShortPieces = 8;

  /// Returns the rule for `units` sequences times KV heads. Few leave no multiprocessor idle only if they are cut
  /// finely; many do not need that, and what a block costs besides its tokens then is the smaller part.
  /// All pieces of a single sequence find room at once, since a second round of blocks would only begin when the first
  /// ends; its window is one of them. Many short histories are cut into no more pieces than find room, unless they are
  /// more themselves; a long one among them is cut, so that others need not wait for it long. Where keys turn, blocks
  /// are large, for their warps share much.
  /// warps_at_once: how many a multiprocessor has registers for, 8 or 16; turns: whether keys turn.
  static SplitRule of(std::int64_t units, int num_kv_heads, int warps_at_once, bool turns = false) {
    const bool many = units >= 64;
    SplitRule rule{};
    rule.warps = many && !turns ? 4 : 8;
    rule.least_tokens = !many ? 512 : turns ? 8192 : 4096;
    rule.window_pieces = many && units < 256 && warps_at_once == 16 ? kMostWindowPieces : 1;
    const int places = 132 * warps_at_once / rule.warps;  // of blocks on an H100
    rule.history_pieces = std::clamp(places / num_kv_heads - rule.window_pieces, 1, kMostPieces);
    rule.short_pieces =
        many ? static_cast<int>(std::clamp<std::int64_t>(places / units, 1, kMostShortPieces)) : kMostShortPieces;
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
    const int part = multiple(length, rule.short_pieces, kQuantum), some = part < kShort ? kShort : part;
    const int wanted = some < rule.least_tokens ? some : rule.least_tokens;
    if (history_tokens < wanted) history_tokens = wanted;
    history_splits = (length + history_tokens - 1) / history_tokens;
  }
  OSCAR_HOST_DEVICE int count() const { return window_splits + history_splits; }
  /// First token of a split of the history.
  OSCAR_HOST_DEVICE int history_first(int split) const { return (split - window_splits) * history_tokens; }
  /// No sequence up to these lengths has more blocks.
  static int most(int max_length, int max_window, const SplitRule& rule) {
    const int by_length = std::max(rule.short_pieces, (max_length + rule.least_tokens - 1) / rule.least_tokens);
    const int by_window = std::max(1, (max_window + 16 * rule.warps - 1) / (16 * rule.warps));
    return std::min(by_length, rule.history_pieces) + std::min(by_window, rule.window_pieces);
  }

 private:
  static constexpr int kQuantum = 64, kShort = 512;

  /// The least multiple of `quantum` of which `count` make `total`.
  OSCAR_HOST_DEVICE static int multiple(int total, int count, int quantum) {
    const int tokens = (total + count - 1) / count;
    return tokens < 1 ? quantum : (tokens + quantum - 1) / quantum * quantum;
  }
};

// How the coded decode kernel divides its work, by what a multiprocessor has room for: registers and shared memory.

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
  [[nodiscard]] OSCAR_HOST_DEVICE constexpr int team() const { return key_tiles <= 2 ? 1 : 4; }
  /// Steps whose copies a warp has room for. With one, keys and values of the next step are copied as soon as those of
  /// a step have been read; a second one would take room that other warps need. Teams wait for each other more often
  /// in steps of 32 tokens, whose copies are half as large: they have two.
  [[nodiscard]] constexpr int stages() const { return team() == 1 || step() == 64 ? 1 : 2; }
  /// Bytes of shared memory of a step's copies: its rows' planes and scales.
  [[nodiscard]] constexpr int stage_bytes(int planes) const { return step() * (16 * planes + 4); }
  /// Bytes of a warp's step of scales as float32 and of weights: 16 bytes a token each, the weights for each class of
  /// scales and 8 heads. Those of 4 heads are kept in registers.
  [[nodiscard]] constexpr int weights_bytes() const {
    const int sets = key_tiles == 1 ? 0 : key_tiles == 2 ? 2 : 4;
    return 16 * step() * (1 + sets);
  }
  /// Bytes of the words of CodedQueries.
  [[nodiscard]] OSCAR_HOST_DEVICE constexpr int word_bytes(int key_operands) const {
    return 128 * key_tiles * key_operands;
  }
  /// Floats of a head in a team's results by operand; + 8 against bank conflicts.
  [[nodiscard]] constexpr int operand_stride() const { return 16 * operands + 8; }
  /// Bytes of a warp: copies, then scales and weights; at last its share of the team's results of four heads.
  [[nodiscard]] constexpr int warp_bytes(int planes) const {
    return std::max(stages() * stage_bytes(planes) + weights_bytes(), 16 * operand_stride() / team());
  }
  /// Warps of a block that shared memory of `bytes` has room for: whole teams, one at least and `most` warps at most.
  /// beside(tiling, warps): bytes that a block of so many warps has besides.
  template <class Beside>
  [[nodiscard]] constexpr int warps(int bytes, int planes, int most, const Beside& beside) const {
    int warps = most / team() * team();
    while (warps > team() && warps * warp_bytes(planes) + beside(*this, warps) > bytes) warps -= team();
    return std::max(warps, team());
  }
  /// Returns this tiling; where its steps would halve the warps of a block, one of shorter steps, which take less room.
  template <class Beside>
  [[nodiscard]] constexpr CodedTiling fitted(int bytes, int planes, int most, const Beside& beside) const {
    const CodedTiling shorter{key_tiles, kSome};
    const bool halves = 2 * warps(bytes, planes, most, beside) <= shorter.warps(bytes, planes, most, beside);
    return operands == kFew && halves ? shorter : *this;
  }
};

/// Where a block's shared memory has what it knows of keys that turn, in bytes. A chunk is 16 pairs of channels, of
/// which lane (g, t) has column g of each tile of four heads, and the pairs 2t, 2t + 1, 2t + 8 and 2t + 9. Words are
/// those of CodedQueries.
struct TurnedPlaces {
  unsigned mean_z;             // of each chunk, tile and lane (uint4): means of fast pairs, then those of others
  unsigned mean_table;         // of each fast chunk cosines, then sines, of kept tiles of tokens and lanes (uint4)
  unsigned turns;              // of each pair: how far it turns in half a position
  unsigned units, mean_units;  // of each head: what a unit of its scores is worth; in such units, of means
  unsigned gather;  // of each pair of operands and word: where among those of pairs its phases are (4 of 16 bits)
  unsigned z;       // of each pair of operands, tile and lane (uint4)
  unsigned own, own_bytes, own_steps;     // of each warp: phases of pairs, of their block of positions and of a step
  unsigned team, team_bytes, word_bytes;  // of each team: its words, of two blocks of positions if it has several warps
  unsigned pairs, words, tops, queries;   // only to begin with: copies of the turn table's and the layout table's rows,
  unsigned pair_of;                       // and of q; of each coordinate: 2 * its pair, and 1 if it is its second
  unsigned end;                           // bytes in all

  /// step: tokens. Cosines are kept of the first half of them: those of the others are the same in the opposite order.
  /// The places up to `gather`, and those of a warp's own, do not depend on key_operands and warps.
  OSCAR_HOST_DEVICE constexpr TurnedPlaces(int head_dim, int step, int key_tiles, int key_operands, int warps) {
    const auto count = static_cast<unsigned>(key_operands), dim = static_cast<unsigned>(head_dim);
    const auto tiles = static_cast<unsigned>(key_tiles), tokens = static_cast<unsigned>(step / 32);
    const CodedTiling tiling{key_tiles, 0};
    const int in_team = tiling.team();
    mean_z = 0, mean_table = 32 * tiles * dim, turns = mean_table + 32 * tokens * dim;
    units = turns + 2 * dim, mean_units = units + 16 * tiles, gather = mean_units + 16 * tiles;
    z = gather + 32 * count, own = z + 256 * tiles * count;
    own_steps = 2 * dim, own_bytes = own_steps + 4 * dim, team = own + own_bytes * static_cast<unsigned>(warps);
    word_bytes = static_cast<unsigned>(tiling.word_bytes(key_operands));
    team_bytes = (in_team == 1 ? 1 : 2) * word_bytes;
    pairs = own, words = pairs + 32 * dim, tops = words + 96 * count, queries = tops + 4 * dim;
    pair_of = queries + 8 * tiles * dim;
    const unsigned of_teams = team + team_bytes * static_cast<unsigned>(warps / in_team), at_first = pair_of + 2 * dim;
    end = of_teams > at_first ? of_teams : at_first;
  }
};

}  // namespace oscar::cuda
