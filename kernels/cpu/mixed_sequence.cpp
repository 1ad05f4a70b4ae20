// SPDX-License-Identifier: MIT
// The CPU's MixedSequence: rows turned, packed and kept; attend() and compare() answer from them.
#include <array>
#include <memory>

#include "base/errors.hpp"
#include "base/status.hpp"
#include "base/threads.hpp"
#include "kernels/arguments.hpp"
#include "kernels/cpu/mixed_attention.hpp"
#include "kernels/cpu/ops.hpp"

namespace oscar::cpu {

namespace {

bool fits(const std::optional<HistoryRows>& history, const HeadsView& stored) {
  if (!history) return true;
  const auto same = [&](std::int64_t tokens, int heads, int dim) {
    return tokens == stored.num_tokens && heads == stored.num_heads && dim == stored.head_dim;
  };
  const HeadsView& decoded = history->decoded;
  return history->packed != nullptr ? same(history->packed->tokens(), history->packed->heads(), history->packed->dim())
                                    : same(decoded.num_tokens, decoded.num_heads, decoded.head_dim);
}

}  // namespace

std::vector<std::int64_t> resolve_positions(const MixedAttention& mixed) {
  return oscar::resolve_positions(mixed.query_positions, mixed.q.num_tokens);
}

void check_mixed(const MixedAttention& mixed) {
  OSCAR_CHECK(fits(mixed.history_k, mixed.window_k) && fits(mixed.history_v, mixed.window_v));
  OSCAR_CHECK(mixed.window_k.num_tokens == mixed.window_v.num_tokens);
  OSCAR_CHECK(mixed.window_k.num_heads == mixed.window_v.num_heads && mixed.window_k.num_heads > 0);
  OSCAR_CHECK(mixed.q.num_heads % mixed.window_k.num_heads == 0 && mixed.q.head_dim == mixed.window_k.head_dim);
  OSCAR_CHECK(mixed.windows.sink >= 0 && mixed.windows.recent >= 0);
  check_positions(resolve_positions(mixed), mixed.q.num_tokens, mixed.window_k.num_tokens);
  const MatrixStack* back = mixed.native_from_rotated;
  OSCAR_CHECK(back == nullptr ||
              (back->dim == mixed.window_v.head_dim && (back->count == 1 || back->count == mixed.window_v.num_heads)));
}

void check_exact(const QkvView& exact, const MixedAttention& mixed) {
  OSCAR_CHECK(exact.q.num_tokens == mixed.q.num_tokens && exact.q.num_heads == mixed.q.num_heads);
  OSCAR_CHECK(exact.k.num_tokens == mixed.window_k.num_tokens && exact.k.num_heads == mixed.window_k.num_heads);
  OSCAR_CHECK(exact.v.num_tokens == mixed.window_v.num_tokens && exact.v.num_heads == mixed.window_v.num_heads);
  OSCAR_CHECK(exact.q.head_dim == exact.k.head_dim && exact.v.head_dim == mixed.window_v.head_dim);
}

namespace {

/// Rows as stored, (num_tokens, num_heads, d): (x - mean) matrices. matrices null: x; mean empty: zero.
std::vector<float> transformed(HeadsView x, const MatrixStack* matrices, std::span<const double> mean,
                               Precision precision) {
  if (matrices == nullptr) {
    std::vector<float> rows = x.floats();
    if (precision == Precision::kServing) round_to_bf16(rows);
    return rows;
  }
  std::vector<float> centred;
  if (!mean.empty()) {
    centred = x.floats();
    for (std::size_t i = 0; i < centred.size(); ++i) centred[i] -= static_cast<float>(mean[i % mean.size()]);
    x = heads_view(centred, x.num_tokens, x.num_heads, x.head_dim);
  }
  std::vector<float> rows(static_cast<std::size_t>(x.num_tokens) * static_cast<std::size_t>(x.num_heads * x.head_dim));
  rotate(x, *matrices, precision, rows);
  return rows;
}

/// Of the rows of each head: values (tokens, num_heads, dim).
std::vector<double> energies(std::span<const float> values, int num_heads, int dim) {
  std::vector<double> sums(static_cast<std::size_t>(num_heads));
  const auto row_size = static_cast<std::size_t>(dim);
  for (std::size_t row = 0; row * row_size < values.size(); ++row) {
    for (const float value : values.subspan(row * row_size, row_size)) sums[row % sums.size()] += double{value} * value;
  }
  return sums;
}

/// Keys or values: as stored, and packed with the codec that was asked for last.
class Side {
 public:
  Side(HeadsView native, const Transform* transform, HeadsView decoded, Precision precision)
      : native_(native),
        given_(decoded),
        transform_(transform),
        precision_(precision),
        stored_(written(native, precision)) {
    if (transform != nullptr) native_from_stored_ = transform->read().transposed();
  }

  /// Null: rows are stored as they are.
  [[nodiscard]] const MatrixStack* native_from_stored() const {
    return transform_ != nullptr ? &native_from_stored_ : nullptr;
  }

  [[nodiscard]] HeadsView stored() const { return view(stored_); }

  [[nodiscard]] std::optional<HistoryRows> history(const std::optional<HistoryCodec>& codec) {
    if (!codec) return std::nullopt;
    if (packed_with_ != codec) packed_ = packed(*codec);
    packed_with_ = codec;
    return rows_of(packed_);
  }

  /// For many codecs at once, packed into `packed`, by codec.
  [[nodiscard]] Histories histories(const CodecChoice& choice,
                                    std::vector<std::optional<PackedHistory>>& packed) const {
    Histories all{{}, choice.of_candidate};
    packed.reserve(choice.codecs.size());
    for (const std::optional<HistoryCodec>& codec : choice.codecs) {
      throw_if_interrupted();
      packed.push_back(codec ? this->packed(*codec) : std::nullopt);
      all.rows.push_back(codec ? std::optional(rows_of(packed.back())) : std::nullopt);
    }
    return all;
  }

  /// Signal and noise of each head: energies of the native rows of tokens [begin, end) and of what the codec and the
  /// rounding add to them, which a transform that does not keep lengths maps back.
  [[nodiscard]] std::pair<std::vector<double>, std::vector<double>> errors(const std::optional<HistoryCodec>& codec,
                                                                           std::int64_t begin, std::int64_t end) {
    const int heads = native_.num_heads, dim = native_.head_dim;
    if (begin >= end) return {energies({}, heads, dim), energies({}, heads, dim)};
    const HeadsView native = native_.tokens(begin, end);
    std::vector<float> error = written(native, Precision::kExact);
    subtract_history(codec, begin, end, error);
    if (transform_ != nullptr && transform_->read_rotation.count > 0) {
      error =
          transformed(heads_view(error, native.num_tokens, heads, dim), &native_from_stored_, {}, Precision::kExact);
    }
    return {energies(native.floats(), heads, dim), energies(error, heads, dim)};
  }

 private:
  [[nodiscard]] std::vector<float> written(HeadsView native, Precision precision) const {
    if (transform_ == nullptr) return transformed(native, nullptr, {}, precision);
    return transformed(native, &transform_->rotation, transform_->mean, precision);
  }
  /// Nothing, if the history is given.
  [[nodiscard]] std::optional<PackedHistory> packed(const HistoryCodec& codec) const {
    check_heads(codec, native_.num_heads);
    if (given_.data != nullptr) return std::nullopt;
    return PackedHistory(stored_, native_.num_heads, native_.head_dim, codec);
  }
  [[nodiscard]] HistoryRows rows_of(const std::optional<PackedHistory>& packed) const {
    return packed ? HistoryRows{&*packed} : HistoryRows{nullptr, given_};
  }
  /// rows (end - begin, heads, d) -= what the history holds of tokens [begin, end).
  void subtract_history(const std::optional<HistoryCodec>& codec, std::int64_t begin, std::int64_t end,
                        std::span<float> rows) {
    const auto heads = static_cast<std::size_t>(native_.num_heads), dim = static_cast<std::size_t>(native_.head_dim);
    const HistoryRows read = history(codec).value_or(HistoryRows{nullptr, stored()});
    parallel_for(static_cast<std::size_t>(end - begin), [&](std::size_t t) {
      std::vector<float> row(dim);
      for (std::size_t head = 0; head < heads; ++head) {
        read.row(begin + static_cast<std::int64_t>(t), static_cast<int>(head), precision_, row);
        for (std::size_t i = 0; i < dim; ++i) rows[(t * heads + head) * dim + i] -= row[i];
      }
    });
  }
  [[nodiscard]] HeadsView view(const std::vector<float>& rows) const {
    return heads_view(rows, native_.num_tokens, native_.num_heads, native_.head_dim);
  }

  HeadsView native_, given_;
  const Transform* transform_;
  Precision precision_;
  MatrixStack native_from_stored_;  // rotation^-1
  std::vector<float> stored_;
  std::optional<PackedHistory> packed_;
  std::optional<HistoryCodec> packed_with_;
};

class HeldSequence : public MixedSequence {
 public:
  explicit HeldSequence(const SequenceInput& input)
      : input_(input),
        q_(transformed(input.qkv.q, input.key != nullptr ? &input.key->read() : nullptr, {}, input.precision)),
        key_(input.qkv.k, input.key, input.decoded_k, input.precision),
        value_(input.qkv.v, input.value, input.decoded_v, input.precision) {}

  void attend(const HistoryCodecs& codecs, Windows windows, std::span<float> out) override {
    cpu::attend(mixed(codecs, windows), out);
  }

  [[nodiscard]] std::vector<std::vector<AttentionErrors>> compare(std::span<const HistoryCodecs> candidates,
                                                                  Windows windows) override {
    const ComparedSequence self{this, candidates, windows};
    return std::move(cpu::compare(std::span(&self, 1)).front());
  }

  /// packed: where the histories of keys and of values lie.
  [[nodiscard]] ComparedAttention compared(std::span<const HistoryCodecs> candidates, Windows windows,
                                           std::array<std::vector<std::optional<PackedHistory>>, 2>& packed) {
    OSCAR_CHECK(input_.scores == nullptr);
    return {mixed({}, windows), key_.histories(choose_codecs(candidates, &HistoryCodecs::key), packed[0]),
            value_.histories(choose_codecs(candidates, &HistoryCodecs::value), packed[1])};
  }
  [[nodiscard]] const QkvView& native() const { return input_.qkv; }

  [[nodiscard]] std::vector<RowErrors> row_errors(const HistoryCodecs& codecs, Windows windows) override {
    const std::int64_t begin = windows.sink, end = input_.qkv.k.num_tokens - windows.recent;
    const auto [key_signal, key_noise] = key_.errors(codecs.key, begin, end);
    const auto [value_signal, value_noise] = value_.errors(codecs.value, begin, end);
    std::vector<RowErrors> errors;
    for (std::size_t h = 0; h < key_signal.size(); ++h) {
      errors.push_back({key_signal[h], key_noise[h], value_signal[h], value_noise[h]});
    }
    return errors;
  }

 private:
  [[nodiscard]] MixedAttention mixed(const HistoryCodecs& codecs, Windows windows) {
    const HeadsView& q = input_.qkv.q;
    return {.q = heads_view(q_, q.num_tokens, q.num_heads, q.head_dim),
            .window_k = key_.stored(),
            .window_v = value_.stored(),
            .history_k = key_.history(codecs.key),
            .history_v = value_.history(codecs.value),
            .query_positions = input_.query_positions,
            .windows = windows,
            .native_from_rotated = value_.native_from_stored(),
            .precision = input_.precision,
            .scores = input_.scores};
  }

  SequenceInput input_;
  std::vector<float> q_;
  Side key_, value_;
};

}  // namespace

std::unique_ptr<MixedSequence> hold(const SequenceInput& input) {
  check_sequence(input);
  return std::make_unique<HeldSequence>(input);
}

std::vector<std::vector<std::vector<AttentionErrors>>> compare(std::span<const ComparedSequence> sequences) {
  if (sequences.empty()) return {};
  std::vector<std::array<std::vector<std::optional<PackedHistory>>, 2>> packed(sequences.size());
  std::vector<ComparedAttention> compared;
  const HeldSequence* held = nullptr;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    auto* const own = dynamic_cast<HeldSequence*>(sequences[i].sequence);
    OSCAR_CHECK(own != nullptr);
    if (held == nullptr) held = own;
    compared.push_back(own->compared(sequences[i].candidates, sequences[i].windows, packed[i]));
  }
  return compare_attention(held->native(), compared);
}

}  // namespace oscar::cpu
