// SPDX-License-Identifier: MIT
// attend(): packs the history as a server's cache has it, lets mixed_attention() read it, and maps the outputs back.
#include "kernels/arguments.hpp"
#include "kernels/cuda/held_sequence.hpp"
#include "kernels/cuda/mixed_attention.hpp"
#include "kernels/cuda/row_codec.hpp"

namespace oscar::cuda {
namespace {

/// The history of one side.
class HistorySide {
 public:
  HistorySide(const Context& context, const HeldRows& rows, const std::optional<HistoryCodec>& codec,
              Precision precision) {
    side_.stored = rows.stored(rows.everything());
    if (!codec) return;
    if (rows.has_history()) {
      side_.decoded = rows.history(rows.everything());
      return;
    }
    side_.round_decoded = precision == Precision::kServing;
    if (codec->coded != nullptr) {
      pack(context, *codec);
    } else {
      quantise(context, *codec, precision);
    }
    side_.codes = codes_.data();
  }

  [[nodiscard]] const CacheSide& side() const { return side_; }

 private:
  void pack(const Context& context, const HistoryCodec& codec) {
    const RowsView& rows = side_.stored;
    formats_ = CodedFormats(context, formats_of(codec, 0, rows.heads), rows.dim);
    side_.coded = formats_.view();
    codes_ =
        DeviceBuffer<std::uint8_t>(context, static_cast<std::size_t>(rows.rows_per_head * formats_.bytes_per_token()));
    encode_coded_rows(context, rows, formats_, codes_.data());
  }

  void quantise(const Context& context, const HistoryCodec& codec, Precision precision) {
    const std::int64_t count = side_.stored.count();
    const int dim = side_.stored.dim;
    side_.group_size = checked_group_size(codec, dim);
    side_.packed = is_packed(codec.levels, dim);
    codes_ = DeviceBuffer<std::uint8_t>(context, static_cast<std::size_t>(count * dim));
    params_ = DeviceBuffer<GroupParams>(context, static_cast<std::size_t>(count * (dim / side_.group_size)));
    quantize_rows(context, side_.stored, {&codec, 1}, precision, {.codes = codes_.data(), .params = params_.data()});
    if (side_.packed) {
      DeviceBuffer<std::uint8_t> bytes(context, codes_.size() / 4);
      pack_codes(context, codes_.data(), count, dim, bytes.data());
      codes_ = std::move(bytes);
    }
    side_.params = params_.data();
  }

  CacheSide side_;
  CodedFormats formats_;
  DeviceBuffer<std::uint8_t> codes_;
  DeviceBuffer<GroupParams> params_;
};

/// native (queries, Hq, d) = rotated R^T in fp32, R the matrix of the query head's KV head.
void restore(const Context& context, const HeldData& held, const float* rotated, float* native) {
  const std::int64_t dim = held.v.dim();
  const std::int64_t heads = std::int64_t{held.k.kv_heads()} * held.q.heads_per_kv_head();
  const std::int64_t count = held.value_read.count();
  DeviceBuffer<float> matrices(context, static_cast<std::size_t>(count * dim * dim));
  narrow(context, held.value_read.matrix(0, held.precision),
         dense_rows(matrices.data(), count * dim, static_cast<int>(dim)));
  const float one = 1.0F, zero = 0.0F;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = i * (heads / count) * dim;
    // Query head by query head: the rows of one lie heads * dim apart. By columns, n and m change places.
    OSCAR_CUDA_TRY(cublasSgemmStridedBatched_64(
        context.blas(), CUBLAS_OP_T, CUBLAS_OP_N, dim, held.q.tokens(), dim, &one, matrices.data() + i * dim * dim, dim,
        0, rotated + first, heads * dim, dim, &zero, native + first, heads * dim, dim, heads / count));
  }
}

}  // namespace

void attend(const Context& context, const HeldData& held, const HistoryCodecs& codecs, Windows windows,
            std::span<float> out) {
  OSCAR_CHECK(out.size() == held.q.size(held.q.everything()) / static_cast<std::size_t>(held.q.dim()) *
                                static_cast<std::size_t>(held.v.dim()));
  if (out.empty()) return;
  const HistorySide key(context, held.k, codecs.key, held.precision);
  const HistorySide value(context, held.v, codecs.value, held.precision);
  DeviceBuffer<float> rotated(context, out.size());
  const DeviceBuffer<float> sinks(context, std::span(held.scores.sinks));
  mixed_attention(context,
                  {.rows = held.q.stored(held.q.everything()),
                   .positions = held.positions.data(),
                   .count = held.q.tokens(),
                   .g = held.q.heads_per_kv_head()},
                  {.key = key.side(),
                   .value = value.side(),
                   .keys = held.k.tokens(),
                   .kv_heads = held.k.kv_heads(),
                   .windows = windows,
                   .scores = {.soft_cap = static_cast<float>(held.scores.soft_cap),
                              .reach = held.scores.reach,
                              .sinks = sinks.size() > 0 ? sinks.data() : nullptr}},
                  held.precision == Precision::kServing, rotated.data());
  if (!held.value_read.exists()) return rotated.download(context, out);
  DeviceBuffer<float> native(context, out.size());
  restore(context, held, rotated.data(), native.data());
  native.download(context, out);
}

}  // namespace oscar::cuda
