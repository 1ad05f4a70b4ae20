// SPDX-License-Identifier: MIT
// A way to store keys and values, as data: the windows that stay in bfloat16, and per layer and side an optional
// rotation and a row codec, or a method that decodes whole sequences. Methods of other people and a rotation set under
// test look the same from here. Non-goals: arithmetic, fitting.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/mixed_sequence.hpp"
#include "kernels/rotary.hpp"

namespace oscar {

class Backend;
struct CodedPart;
struct RotationPart;

/// What a method may know beside the rows.
struct SequenceContext {
  /// How keys turn. None: the source does not tell; methods of others that quantise keys before RoPE then work on them
  /// as they are.
  std::optional<Rotary> rotary;
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

enum class MethodKind {
  kExact,     // nothing is quantised
  kBaseline,  // somebody else's method, or no method
  kThis       // the set under test
};
/// "exact", "baseline", "this".
[[nodiscard]] std::string name_of(MethodKind kind);

/// Keys, or values, of one layer.
struct KvSide {
  /// How rows are transformed before they are stored. Null: they are stored as they are.
  std::shared_ptr<const Transform> transform;
  HistoryCodec codec;
  bool quantized = true;
  /// A method that decodes the history in native coordinates, in place of the transform, which is null then, and the
  /// codec. Null: there is none.
  std::shared_ptr<const SideMethod> method = nullptr;
};

struct KvLayer {
  int head_dim = 0;
  KvSide key, value;
  int num_kv_heads = 1;
  int value_dim = 0;  // of values, if it is not head_dim; else 0
  /// How keys turn, for methods that quantise them before RoPE; without it they quantise keys as they are.
  std::optional<Rotary> rotary = {};

  [[nodiscard]] HistoryCodecs codecs() const;
  /// A sequence in this layer's coordinates; refers to this layer's transforms.
  [[nodiscard]] SequenceInput hold(const QkvView& qkv, std::span<const std::int64_t> query_positions,
                                   Precision precision) const;
};

struct KvMethod {
  std::string name;
  MethodKind kind = MethodKind::kBaseline;
  Windows windows;
  std::map<int, KvLayer> layers;
  /// One line: what it is, and what stands in for what cannot be known.
  std::string description;
  /// Its authors quantise keys before RoPE.
  bool before_rope = false;

  /// Throws DataError that names the method and the layer if it has none.
  [[nodiscard]] const KvLayer& layer(int layer_id) const;
};

/// The clip ratios that the published serving scripts use for every model and layer.
inline constexpr double kPublishedKeyClip = 0.96, kPublishedValueClip = 0.92;

/// Rows whose memory the next HeldSequence of this thread uses again: fresh pages for every method would cost as much
/// as a codec.
class DecodedRows {
 public:
  DecodedRows() = default;
  ~DecodedRows();
  DecodedRows(DecodedRows&&) = default;
  DecodedRows& operator=(DecodedRows&&) = default;

  std::vector<float> rows;
};

/// A sequence of a layer as a method holds it.
struct HeldSequence {
  DecodedRows decoded_k, decoded_v;  // what `rows` refers to, if the method decodes sequences
  std::unique_ptr<MixedSequence> rows;
};
/// qkv, query_positions, the method and the score rule must outlive it. scores: as in SequenceInput.
[[nodiscard]] HeldSequence hold(const KvMethod& method, int layer_id, const QkvView& qkv,
                                std::span<const std::int64_t> query_positions, Precision precision, Backend& backend,
                                const ScoreRule* scores = nullptr);

/// Bits that one stored number takes, keys and values and layers averaged.
struct BitsPerElement {
  double fp16_params = 0, fp32_params = 0;          // of a quantised row: bits + 2 p / G
  double fp16_at_context = 0, fp32_at_context = 0;  // windows included: b + (sink + recent) / T * (16 - b)
  std::int64_t context = 0;                         // T
};
[[nodiscard]] BitsPerElement bits_per_element(const KvMethod& method, std::int64_t context);

/// Returns rotations as a method, which has copies of their matrices. Clip ratios that they do not know are the
/// published constants.
[[nodiscard]] KvMethod method_of(const RotationPart& rotations, Windows windows);
/// Returns the coded cache as a method. Keys that are stored before RoPE are decoded, turned and rounded to bfloat16
/// before attention reads them.
[[nodiscard]] KvMethod method_of(const CodedPart& coded, Windows windows);

}  // namespace oscar
