// SPDX-License-Identifier: MIT
// The keys, or the values, of one sequence as a method stores them that looks at more than one row: groups of tokens,
// all heads of a token, positions. Such a method replaces the history by what a reader of its cache would get; windows
// are not its business. Which methods there are: lib/peers. Non-goals: packing, speed beyond what a measurement needs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar {

class Backend;

/// Rotary embedding: coordinates j and j + dims / 2 of a head turn by position * theta^(-2 j / dims).
struct Rope {
  double theta = 0;
  /// The first `dims` coordinates of a head take part; 0 = all.
  int dims = 0;
};

/// What a method may know beside the rows.
struct SequenceContext {
  /// The rotary embedding of keys. None: the source does not tell; methods that quantise keys before RoPE then work on
  /// them as they are.
  std::optional<Rope> rope;
  /// kServing: rows are bfloat16 where an engine stores them so.
  Precision precision = Precision::kServing;
  /// Computes row codecs.
  Backend* backend = nullptr;
};

/// The tokens of one sequence that a method quantises, keys or values, in order.
struct History {
  std::span<float> rows;  // (tokens, heads, dim)
  std::int64_t tokens = 0;
  int heads = 0, dim = 0;
  std::int64_t first_position = 0;
  SequenceContext context;

  /// Rounds the rows as an engine stores them between two steps: to bfloat16 when serving.
  void store() const;
};

/// The size of the rows whose bits are counted.
struct KvShape {
  int head_dim = 0, num_kv_heads = 0;
};

/// What one element of the history takes.
struct StoredBits {
  double codes = 0;       // codes, and whatever has a fixed width
  double parameters = 0;  // numbers per element that may be fp16 or fp32
};

/// How keys, or values, are stored.
struct SideMethod {
  std::function<void(const History&)> reconstruct;  // in place
  std::function<StoredBits(const KvShape&)> bits;
};

/// Returns x, (num_tokens, num_heads, head_dim) in native coordinates, with tokens [range.begin, range.end) as the
/// method returns them. Token i of x stands at position i. kServing: all rows are rounded to bfloat16, before and
/// after. rows: memory for the result.
[[nodiscard]] std::vector<float> reconstruct(const SideMethod& side, HeadsView x, SequenceRange range,
                                             const SequenceContext& context, std::vector<float> rows = {});

}  // namespace oscar
