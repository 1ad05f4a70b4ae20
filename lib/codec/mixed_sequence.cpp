// SPDX-License-Identifier: MIT
#include "codec/mixed_sequence.hpp"

namespace oscar {
namespace {

/// x rotated, or only rounded if there is no rotation.
std::vector<float> transformed(HeadsView x, const MatrixStack* rotation, Precision precision, Backend& backend) {
  const auto dim = static_cast<std::size_t>(x.head_dim);
  std::vector<float> rows(static_cast<std::size_t>(x.num_tokens) * static_cast<std::size_t>(x.num_heads) * dim);
  if (rotation != nullptr) {
    backend.rotate(x, *rotation, precision, rows);
    return rows;
  }
  for (std::size_t row = 0; row * dim < rows.size(); ++row) {
    const auto heads = static_cast<std::size_t>(x.num_heads);
    x.row(static_cast<std::int64_t>(row / heads), static_cast<int>(row % heads),
          std::span(rows).subspan(row * dim, dim));
  }
  if (precision == Precision::kServing) {
    for (float& value : rows) value = round_to_bf16(value);
  }
  return rows;
}

MatrixStack transposed(const MatrixStack& stack) {
  MatrixStack result(stack.count, stack.dim);
  const auto dim = static_cast<std::size_t>(stack.dim);
  for (int m = 0; m < stack.count; ++m) {
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) result[m][j * dim + i] = stack[m][i * dim + j];
    }
  }
  return result;
}

}  // namespace

MixedSequence::MixedSequence(const QkvView& qkv, const MatrixStack* key_rotation, const MatrixStack* value_rotation,
                             Precision precision, Backend& backend)
    : num_queries_(qkv.q.num_tokens),
      num_keys_(qkv.k.num_tokens),
      num_heads_(qkv.q.num_heads),
      num_kv_heads_(qkv.k.num_heads),
      head_dim_(qkv.k.head_dim),
      precision_(precision),
      q_(transformed(qkv.q, key_rotation, precision, backend)),
      window_k_(transformed(qkv.k, key_rotation, precision, backend)),
      window_v_(transformed(qkv.v, value_rotation, precision, backend)) {
  if (value_rotation != nullptr) native_from_rotated_ = transposed(*value_rotation);
}

void MixedSequence::quantize_keys(const RowCodec& codec, Backend& backend) {
  history_k_.resize(window_k_.size());
  backend.quantize(window_k_, head_dim_, codec, precision_, history_k_, nullptr);
}

void MixedSequence::quantize_values(const RowCodec& codec, Backend& backend) {
  history_v_.resize(window_v_.size());
  backend.quantize(window_v_, head_dim_, codec, precision_, history_v_, nullptr);
}

MixedAttention MixedSequence::view(Windows windows, std::span<const std::int64_t> query_positions,
                                   QuantizedSides sides) const {
  const bool keys = sides == QuantizedSides::kKeys || sides == QuantizedSides::kBoth;
  const bool values = sides == QuantizedSides::kValues || sides == QuantizedSides::kBoth;
  return {.q = heads_view(q_, num_queries_, num_heads_, head_dim_),
          .window_k = window_k(),
          .history_k = keys ? history_k() : window_k(),
          .window_v = window_v(),
          .history_v = values ? history_v() : window_v(),
          .query_positions = query_positions,
          .windows = windows,
          .native_from_rotated = native_from_rotated_.count > 0 ? &native_from_rotated_ : nullptr,
          .precision = precision_};
}

MixedSequence make_mixed_sequence(const QkvView& qkv, const KvLayer& layer, Precision precision, Backend& backend) {
  MixedSequence sequence(qkv, layer.key.rotation.get(), layer.value.rotation.get(), precision, backend);
  if (layer.key.quantized) sequence.quantize_keys(layer.key.codec, backend);
  if (layer.value.quantized) sequence.quantize_values(layer.value.codec, backend);
  return sequence;
}

}  // namespace oscar
