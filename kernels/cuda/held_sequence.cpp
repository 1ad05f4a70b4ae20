// SPDX-License-Identifier: MIT
#include "kernels/cuda/held_sequence.hpp"

#include "kernels/arguments.hpp"
#include "kernels/cuda/ingest.hpp"

namespace oscar::cuda {
namespace {

std::size_t bytes_of(const HeadsView& x) { return static_cast<std::size_t>(x.num_tokens * x.bytes_per_token()); }

class HeldSequence : public MixedSequence {
 public:
  HeldSequence(Lanes& lanes, const SequenceInput& input) : lanes_(lanes) {
    check_sequence(input);
    data_ = lanes_.run([&](const Context& context) { return std::make_unique<HeldData>(context, input); });
  }

  void attend(const HistoryCodecs& codecs, Windows windows, std::span<float> out) override {
    lanes_.run([&](const Context& context) { cuda::attend(context, *data_, codecs, windows, out); });
  }

  [[nodiscard]] std::vector<std::vector<AttentionErrors>> compare(std::span<const HistoryCodecs> candidates,
                                                                  Windows windows) override {
    return lanes_.run([&](const Context& context) { return cuda::compare(context, *data_, candidates, windows); });
  }

  [[nodiscard]] RowErrors row_errors(const HistoryCodecs& codecs, Windows windows) override {
    return lanes_.run([&](const Context& context) { return cuda::row_errors(context, *data_, codecs, windows); });
  }

 private:
  Lanes& lanes_;
  std::unique_ptr<HeldData> data_;
};

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
      key_rotation(context, input.key_rotation, precision),
      value_rotation(context, input.value_rotation, precision),
      q(context, input.qkv.q, std::move(native.q), input.qkv.k.num_heads, key_rotation, precision),
      k(context, input.qkv.k, std::move(native.k), input.qkv.k.num_heads, key_rotation, precision),
      v(context, input.qkv.v, std::move(native.v), input.qkv.k.num_heads, value_rotation, precision) {}

std::unique_ptr<MixedSequence> hold(Lanes& lanes, const SequenceInput& input) {
  return std::make_unique<HeldSequence>(lanes, input);
}

}  // namespace oscar::cuda
