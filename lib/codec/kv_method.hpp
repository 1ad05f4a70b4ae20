// SPDX-License-Identifier: MIT
// A way to store keys and values, as data: per layer and side an optional rotation and a row codec, and the windows
// that stay in bfloat16. Methods of other people and a rotation set under test look the same from here. Non-goals:
// arithmetic, fitting.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

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
  /// Null: rows are stored as they are.
  std::shared_ptr<const Transform> transform;
  RowCodec codec;
  bool quantized = true;
};

struct KvLayer {
  int head_dim = 0;
  KvSide key, value;

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

  /// Throws DataError that names the method and the layer if it has none.
  [[nodiscard]] const KvLayer& layer(int layer_id) const;
};

/// The clip ratios that the published serving scripts use for every model and layer.
inline constexpr double kPublishedKeyClip = 0.96, kPublishedValueClip = 0.92;

/// What a layer needs to know to get a baseline.
struct LayerShape {
  int layer_id = 0;
  int head_dim = 0;
};

/// Names that make_baseline knows, in the order of reports.
[[nodiscard]] const std::vector<std::string>& baseline_names();
/// bf16; naive: min/max INT2 of the rows as they are; hadamard: of rows times hadamard_baseline_matrix();
/// hadamard_clip: that with the published clip ratios. Throws UsageError that lists the
/// names.
[[nodiscard]] KvMethod make_baseline(const std::string& name, const std::vector<LayerShape>& layers, Windows windows,
                                     int group_size);

/// Sylvester's Hadamard matrix / sqrt(d); for d = m 2^n with odd m > 1, m such blocks of size 2^n on the diagonal.
[[nodiscard]] MatrixStack hadamard_baseline_matrix(int dim);

/// Bits that one stored number takes, keys and values and layers averaged.
struct BitsPerElement {
  double fp16_params = 0, fp32_params = 0;          // of a quantised row: bits + 2 p / G
  double fp16_at_context = 0, fp32_at_context = 0;  // windows included: b + (sink + recent) / T * (16 - b)
  std::int64_t context = 0;                         // T
};
[[nodiscard]] BitsPerElement bits_per_element(const KvMethod& method, std::int64_t context);

}  // namespace oscar
