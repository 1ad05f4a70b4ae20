// SPDX-License-Identifier: MIT
// One sequence of one layer under a KV method: rotated queries, keys and values, and the keys and values decoded from
// their codes; the buffers that Backend::attend and compare_attention look at.
//   rotated = x R (rounded as Precision says),   decoded = decode(encode(rotated))
// Re-quantising with another codec keeps the rotated rows: that is how clip ratios are searched.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/kv_method.hpp"
#include "kernels/backend.hpp"

namespace oscar {

/// Which sides of the history are read decoded; the others are read as the windows store them.
enum class QuantizedSides { kNone, kKeys, kValues, kBoth };

class MixedSequence {
 public:
  /// qkv: one sequence; q may hold fewer tokens than k and v (then view() gets their positions). Rotations: null =
  /// none. Nothing is quantised yet: the history equals the windows.
  MixedSequence(const QkvView& qkv, const MatrixStack* key_rotation, const MatrixStack* value_rotation,
                Precision precision, Backend& backend);

  void quantize_keys(const RowCodec& codec, Backend& backend);
  void quantize_values(const RowCodec& codec, Backend& backend);

  /// Valid as long as this object and `query_positions` (empty: query i stands at key i).
  [[nodiscard]] MixedAttention view(Windows windows, std::span<const std::int64_t> query_positions,
                                    QuantizedSides sides = QuantizedSides::kBoth) const;
  /// Keys and values as written (num_keys, Hkv, d), and as read from the history.
  [[nodiscard]] HeadsView window_k() const { return kv_view(window_k_); }
  [[nodiscard]] HeadsView history_k() const { return kv_view(history_k_.empty() ? window_k_ : history_k_); }
  [[nodiscard]] HeadsView window_v() const { return kv_view(window_v_); }
  [[nodiscard]] HeadsView history_v() const { return kv_view(history_v_.empty() ? window_v_ : history_v_); }

 private:
  [[nodiscard]] HeadsView kv_view(const std::vector<float>& rows) const {
    return heads_view(rows, num_keys_, num_kv_heads_, head_dim_);
  }

  std::int64_t num_queries_, num_keys_;
  int num_heads_, num_kv_heads_, head_dim_;
  Precision precision_;
  std::vector<float> q_, window_k_, history_k_, window_v_, history_v_;  // an empty history equals its window
  MatrixStack native_from_rotated_;                                     // count 0: values are not rotated
};

/// The sequence as `method` stores it: rotated and quantised.
[[nodiscard]] MixedSequence make_mixed_sequence(const QkvView& qkv, const KvLayer& layer, Precision precision,
                                                Backend& backend);

}  // namespace oscar
