// SPDX-License-Identifier: MIT
// A way to store keys and values, as data: the windows that stay in bfloat16, and per layer and side an optional
// rotation and a row codec, or a method that decodes whole sequences. Methods of other people and a rotation set under
// test look the same from here. Non-goals: arithmetic, fitting.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "codec/side_method.hpp"
#include "kernels/mixed_sequence.hpp"

namespace oscar {

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
  /// Its authors quantise keys before RoPE, which `rope` then is; without it keys are quantised as they are.
  bool before_rope = false;
  std::optional<Rope> rope = {};

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

}  // namespace oscar
