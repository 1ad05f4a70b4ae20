// SPDX-License-Identifier: MIT
// hold(): rows rotated once and kept as floats; a side is decoded again only when a call names another codec for it.
#include <memory>

#include "base/status.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {
namespace {

/// x as floats (num_tokens, num_heads, d), rotated unless there is no rotation.
std::vector<float> transformed(HeadsView x, const MatrixStack* rotation, Precision precision) {
  const auto dim = static_cast<std::size_t>(x.head_dim);
  std::vector<float> rows(static_cast<std::size_t>(x.num_tokens) * static_cast<std::size_t>(x.num_heads) * dim);
  if (rotation != nullptr) {
    rotate(x, *rotation, precision, rows);
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

/// Keys or values: as stored, and decoded with the codec that was asked for last.
class Side {
 public:
  Side(HeadsView native, const MatrixStack* rotation, Precision precision)
      : native_(native),
        rotation_(rotation),
        precision_(precision),
        stored_(transformed(native, rotation, precision)) {}

  [[nodiscard]] HeadsView stored() const { return view(stored_); }

  [[nodiscard]] HeadsView history(const std::optional<RowCodec>& codec) {
    if (!codec) return stored();
    if (decoded_with_ != codec) {
      decoded_.resize(stored_.size());
      quantize(stored_, native_.head_dim, *codec, precision_, decoded_, nullptr);
      decoded_with_ = codec;
    }
    return view(decoded_);
  }

  /// Adds the energies of the exact rows of tokens [begin, end) and of what the codec and the rounding add to them.
  void add_errors(const std::optional<RowCodec>& codec, std::int64_t begin, std::int64_t end, double& signal,
                  double& noise) {
    if (begin >= end) return;
    const std::vector<float> exact = transformed(native_.tokens(begin, end), rotation_, Precision::kExact);
    const auto* approximate = reinterpret_cast<const float*>(history(codec).tokens(begin, end).data);
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double e = double{exact[i]} - approximate[i];
      signal += double{exact[i]} * exact[i];
      noise += e * e;
    }
  }

 private:
  [[nodiscard]] HeadsView view(const std::vector<float>& rows) const {
    return heads_view(rows, native_.num_tokens, native_.num_heads, native_.head_dim);
  }

  HeadsView native_;
  const MatrixStack* rotation_;
  Precision precision_;
  std::vector<float> stored_, decoded_;
  std::optional<RowCodec> decoded_with_;
};

class HeldSequence : public MixedSequence {
 public:
  explicit HeldSequence(const SequenceInput& input)
      : input_(input),
        q_(transformed(input.qkv.q, input.key_rotation, input.precision)),
        key_(input.qkv.k, input.key_rotation, input.precision),
        value_(input.qkv.v, input.value_rotation, input.precision) {
    if (input.value_rotation != nullptr) native_from_rotated_ = transposed(*input.value_rotation);
  }

  void attend(const HistoryCodecs& codecs, Windows windows, std::span<float> out) override {
    cpu::attend(mixed(codecs, windows), out);
  }

  [[nodiscard]] std::vector<std::vector<AttentionErrors>> compare(std::span<const HistoryCodecs> candidates,
                                                                  Windows windows) override {
    std::vector<std::vector<AttentionErrors>> errors;
    for (const HistoryCodecs& codecs : candidates) {
      throw_if_interrupted();
      errors.push_back(compare_attention(input_.qkv, mixed(codecs, windows)));
    }
    return errors;
  }

  [[nodiscard]] RowErrors row_errors(const HistoryCodecs& codecs, Windows windows) override {
    RowErrors errors;
    const std::int64_t begin = windows.sink, end = input_.qkv.k.num_tokens - windows.recent;
    key_.add_errors(codecs.key, begin, end, errors.key_signal, errors.key_noise);
    value_.add_errors(codecs.value, begin, end, errors.value_signal, errors.value_noise);
    return errors;
  }

 private:
  [[nodiscard]] MixedAttention mixed(const HistoryCodecs& codecs, Windows windows) {
    const HeadsView& q = input_.qkv.q;
    return {.q = heads_view(q_, q.num_tokens, q.num_heads, q.head_dim),
            .window_k = key_.stored(),
            .history_k = key_.history(codecs.key),
            .window_v = value_.stored(),
            .history_v = value_.history(codecs.value),
            .query_positions = input_.query_positions,
            .windows = windows,
            .native_from_rotated = native_from_rotated_.count > 0 ? &native_from_rotated_ : nullptr,
            .precision = input_.precision};
  }

  SequenceInput input_;
  std::vector<float> q_;
  Side key_, value_;
  MatrixStack native_from_rotated_;  // count 0: values are not rotated
};

}  // namespace

std::unique_ptr<MixedSequence> hold(const SequenceInput& input) { return std::make_unique<HeldSequence>(input); }

}  // namespace oscar::cpu
