// SPDX-License-Identifier: MIT
// What a held sequence answers: attention and its errors.
#include "kernels/cuda/held_sequence.hpp"

#include <algorithm>

#include "kernels/arguments.hpp"
#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/ingest.hpp"
#include "kernels/cuda/mixed_attention.hpp"
#include "kernels/cuda/row_codec.hpp"
#include "kernels/cuda/rows.hpp"

namespace oscar::cuda {

namespace {

/// Values that are rotated at a time: 32 MiB of doubles.
constexpr std::int64_t kValuesAtATime = std::int64_t{1} << 22;

}  // namespace

Rotation::Rotation(const Context& context, const MatrixStack* matrices, std::span<const double> mean,
                   Precision precision) {
  if (matrices == nullptr) return;
  count_ = matrices->count;
  dim_ = matrices->dim;
  exact_ = DeviceBuffer<double>(context, std::span(matrices->data));
  if (!mean.empty()) mean_ = DeviceBuffer<double>(context, mean);
  if (precision == Precision::kExact) return;
  rounded_ = DeviceBuffer<double>(context, exact_.size());
  OSCAR_CUDA_TRY(cudaMemcpyAsync(rounded_.data(), exact_.data(), exact_.size() * sizeof(double),
                                 cudaMemcpyDeviceToDevice, context.stream()));
  round_to_bf16(context, rounded_);
}

const double* Rotation::matrix(int kv_head, Precision precision) const {
  const DeviceBuffer<double>& matrices = precision == Precision::kServing ? rounded_ : exact_;
  return matrices.data() + (count_ == 1 ? 0 : kv_head * dim_ * dim_);
}

const double* Rotation::mean(int kv_head) const { return mean_.size() == 0 ? nullptr : mean_.data() + kv_head * dim_; }

HeldRows::HeldRows(const Context& context, const HeadsView& x, DeviceBuffer<std::byte> native, int kv_heads,
                   const Rotation& rotation, Precision precision)
    : dtype_(x.dtype),
      stored_dtype_(precision == Precision::kServing ? DType::kBF16 : DType::kF32),
      kv_heads_(kv_heads),
      g_(x.num_heads / kv_heads),
      dim_(x.head_dim),
      tokens_(x.num_tokens),
      native_(std::move(native)),
      stored_(context, size(everything()) * size_of(stored_dtype_)) {
  OSCAR_CHECK(is_activation_dtype(x.dtype));
  const std::int64_t step = std::max<std::int64_t>(kValuesAtATime / (std::int64_t{kv_heads_} * g_ * dim_), 1);
  for (std::int64_t first = 0; first < tokens_; first += step) {
    const Part part{0, kv_heads_, first, std::min(step, tokens_ - first)};
    narrow(context, rotated(context, part, rotation, precision).data(), stored(part));
  }
}

void HeldRows::set_history(const Context& context, const HeadsView& decoded, DeviceBuffer<std::byte> bytes) {
  const Rotation none(context, nullptr, {}, Precision::kExact);
  history_ = std::make_unique<HeldRows>(context, decoded, std::move(bytes), kv_heads_, none, Precision::kExact);
}

RowsView HeldRows::native(const Part& part) const {
  const std::int64_t width = std::int64_t{g_} * dim_;
  const std::int64_t first = (part.first_token * kv_heads_ + part.first_head) * width;
  return {.values = native_.data() + first * static_cast<std::int64_t>(size_of(dtype_)),
          .dtype = dtype_,
          .dim = static_cast<int>(width),
          .heads = part.heads,
          .rows_per_head = part.tokens,
          .head_stride = 1,
          .row_stride = kv_heads_};
}

RowsView HeldRows::stored(const Part& part) const {
  const std::int64_t first = (part.first_head * tokens_ + part.first_token) * g_ * dim_;
  return {.values = stored_.data() + first * static_cast<std::int64_t>(size_of(stored_dtype_)),
          .dtype = stored_dtype_,
          .dim = dim_,
          .heads = part.heads,
          .rows_per_head = part.tokens * g_,
          .head_stride = tokens_ * g_};
}

DeviceBuffer<double> HeldRows::rotated(const Context& context, const Part& part, const Rotation& rotation,
                                       Precision precision) const {
  const std::int64_t rows_per_head = part.tokens * g_;
  DeviceBuffer<double> rows(context, size(part));
  const double* const mean = rotation.mean(part.first_head);
  widen(context, native(part), mean == nullptr ? precision : Precision::kExact, rows.data(), rows_per_head * dim_);
  if (!rotation.exists()) return rows;
  if (mean != nullptr) subtract_mean(context, rows, mean, rows_per_head, dim_, precision);
  DeviceBuffer<double> rotated(context, rows.size());
  const std::int64_t batch = rotation.count() == 1 ? 1 : part.heads;
  gemm(context, {.m = part.heads * rows_per_head / batch, .n = dim_, .k = dim_, .batch = batch}, rows.data(),
       rotation.matrix(part.first_head, precision), rotated.data());
  return rotated;
}

namespace {

std::size_t bytes_of(const HeadsView& x) { return static_cast<std::size_t>(x.num_tokens * x.bytes_per_token()); }

Rotation write_side(const Context& context, const Transform* transform, int kv_heads, Precision precision) {
  if (transform == nullptr) return {context, nullptr, {}, precision};
  std::vector<double> mean = transform->mean;
  if (mean.size() == static_cast<std::size_t>(transform->rotation.dim)) {
    for (int head = 1; head < kv_heads; ++head) {
      mean.insert(mean.end(), transform->mean.begin(), transform->mean.end());
    }
  }
  return {context, &transform->rotation, mean, precision};
}
Rotation read_side(const Context& context, const Transform* transform, Precision precision) {
  return {context, transform == nullptr ? nullptr : &transform->read(), {}, precision};
}

bool keeps_lengths(const Transform* transform) { return transform == nullptr || transform->read_rotation.count == 0; }

class HeldSequence : public MixedSequence {
 public:
  HeldSequence(Lanes& lanes, const SequenceInput& input) : lanes_(lanes) {
    check_sequence(input);
    has_score_rule_ = input.scores != nullptr;
    data_ = lanes_.run([&](const Context& context) { return std::make_unique<HeldData>(context, input); });
  }

  void attend(const HistoryCodecs& codecs, Windows windows, std::span<float> out) override {
    check({&codecs, 1});
    lanes_.run([&](const Context& context) { cuda::attend(context, *data_, codecs, windows, out); });
  }

  [[nodiscard]] std::vector<std::vector<AttentionErrors>> compare(std::span<const HistoryCodecs> candidates,
                                                                  Windows windows) override {
    OSCAR_CHECK(!has_score_rule_);
    check(candidates);
    return lanes_.run([&](const Context& context) { return cuda::compare(context, *data_, candidates, windows); });
  }

  [[nodiscard]] std::vector<RowErrors> row_errors(const HistoryCodecs& codecs, Windows windows) override {
    check({&codecs, 1});
    return lanes_.run([&](const Context& context) { return cuda::row_errors(context, *data_, codecs, windows); });
  }

 private:
  void check(std::span<const HistoryCodecs> all) const {
    for (const HistoryCodecs& codecs : all) {
      if (codecs.key) check_heads(*codecs.key, data_->k.kv_heads());
      if (codecs.value) check_heads(*codecs.value, data_->k.kv_heads());
    }
  }

  Lanes& lanes_;
  std::unique_ptr<HeldData> data_;
  bool has_score_rule_ = false;
};

void set_history(const Context& context, const HeadsView& decoded, HeldRows& rows) {
  if (decoded.data == nullptr) return;
  DeviceBuffer<std::byte> bytes(context, bytes_of(decoded));
  Transfer(context, decoded, bytes.data()).wait();
  rows.set_history(context, decoded, std::move(bytes));
}

}  // namespace

struct HeldData::NativeBytes {
  DeviceBuffer<std::byte> q, k, v;

  NativeBytes(const Context& context, const QkvView& x)
      : q(context, bytes_of(x.q)), k(context, bytes_of(x.k)), v(context, bytes_of(x.v)) {
    Transfer to_q(context, x.q, q.data()), to_k(context, x.k, k.data()), to_v(context, x.v, v.data());
    to_q.wait();
    to_k.wait();
    to_v.wait();
  }
};

HeldData::HeldData(const Context& context, const SequenceInput& input)
    : HeldData(context, input, NativeBytes(context, input.qkv)) {}

HeldData::HeldData(const Context& context, const SequenceInput& input, NativeBytes native)
    : precision(input.precision),
      host_positions(resolve_positions(input.query_positions, input.qkv.q.num_tokens)),
      positions(context, std::span<const std::int64_t>(host_positions)),
      query_read(read_side(context, input.key, precision)),
      key_write(write_side(context, input.key, input.qkv.k.num_heads, precision)),
      value_write(write_side(context, input.value, input.qkv.v.num_heads, precision)),
      value_read(read_side(context, input.value, precision)),
      key_keeps_lengths(keeps_lengths(input.key)),
      value_keeps_lengths(keeps_lengths(input.value)),
      q(context, input.qkv.q, std::move(native.q), input.qkv.k.num_heads, query_read, precision),
      k(context, input.qkv.k, std::move(native.k), input.qkv.k.num_heads, key_write, precision),
      v(context, input.qkv.v, std::move(native.v), input.qkv.k.num_heads, value_write, precision),
      scores(input.scores != nullptr ? *input.scores : ScoreRule()) {
  set_history(context, input.decoded_k, k);
  set_history(context, input.decoded_v, v);
}

std::unique_ptr<MixedSequence> hold(Lanes& lanes, const SequenceInput& input) {
  return std::make_unique<HeldSequence>(lanes, input);
}

namespace {

/// The history of one side.
class HistorySide {
 public:
  HistorySide(const Context& context, const HeldRows& rows, const std::optional<HistoryCodec>& codec,
              Precision precision) {
    side_.stored = side_.decoded = rows.stored(rows.everything());
    if (!codec) return;
    if (rows.has_history()) {
      side_.decoded = rows.history(rows.everything());
      return;
    }
    const RowsView& stored = side_.stored;
    decoded_ = DeviceBuffer<float>(context, static_cast<std::size_t>(stored.count() * stored.dim));
    quantize_rows(context, stored, {&*codec, 1}, precision, {.decoded = decoded_.data()});
    side_.decoded = dense_rows(decoded_.data(), stored.count(), stored.dim);
  }

  [[nodiscard]] const CacheSide& side() const { return side_; }

 private:
  CacheSide side_;
  DeviceBuffer<float> decoded_;
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
