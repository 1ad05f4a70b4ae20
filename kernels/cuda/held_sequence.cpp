// SPDX-License-Identifier: MIT
#include "kernels/cuda/held_sequence.hpp"

#include "kernels/arguments.hpp"
#include "kernels/cuda/ingest.hpp"

namespace oscar::cuda {
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

}  // namespace oscar::cuda
