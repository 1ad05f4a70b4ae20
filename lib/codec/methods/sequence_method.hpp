// SPDX-License-Identifier: MIT
// A way to store keys and values that looks at more than one row: groups of tokens, all heads of a token, positions.
// A method replaces the history of one sequence by what a reader of its cache would get; windows are not its business.
// Methods whose rows stand alone are an optional rotation and a RowCodec instead (codec/kv_method.hpp). Non-goals:
// packing, speed beyond what a measurement needs.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codec/methods/matrix.hpp"
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
  /// None: the source does not tell. Methods that quantise keys before RoPE then work on them as they are.
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

  /// (tokens * heads, dim)
  [[nodiscard]] methods::Matrix by_head() const;
  /// (tokens, heads * dim)
  [[nodiscard]] methods::Matrix by_token() const;
  /// Rows as an engine stores them between two steps: bfloat16 when serving.
  void store() const;
};

struct KvShape {
  int head_dim = 0, num_kv_heads = 0;
};

/// What one element of the history takes.
struct StoredBits {
  double codes = 0;       // codes, and whatever has a fixed width
  double parameters = 0;  // numbers per element that may be fp16 or fp32
};

/// Keys, or values.
struct SideMethod {
  std::function<void(const History&)> reconstruct;  // in place
  std::function<StoredBits(const KvShape&)> bits;
};

struct SequenceMethod {
  std::string name;
  /// One line: what it is, and what stands in for what a dump lacks.
  std::string summary;
  /// Its authors' windows.
  Windows windows;
  SideMethod key, value;
  /// Its authors quantise keys before RoPE.
  bool before_rope = false;
  /// So many layers at either end of the model stay bfloat16.
  std::size_t exact_end_layers = 0;
};

/// All of them, in the order of reports.
[[nodiscard]] const std::vector<SequenceMethod>& sequence_methods();
/// Null if there is none of that name.
[[nodiscard]] const SequenceMethod* find_sequence_method(const std::string& name);

/// x with tokens [range.begin, range.end) as the method returns them, in native coordinates: (num_tokens, num_heads,
/// head_dim). Token i of x stands at position i. kServing: all rows are rounded to bfloat16, before and after. rows:
/// memory for the result.
[[nodiscard]] std::vector<float> reconstruct(const SideMethod& side, HeadsView x, SequenceRange range,
                                             const SequenceContext& context, std::vector<float> rows = {});

}  // namespace oscar
