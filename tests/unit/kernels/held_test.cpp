// SPDX-License-Identifier: MIT
// What transforms and given rows do to a held sequence.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "kernels/cpu/ops.hpp"
#include "support/support.hpp"
#include "unit/kernels/samples.hpp"

namespace oscar {
namespace {

using test::gaussian_floats;
using test::largest_difference;

constexpr int kHeldHeads = 4, kHeldKvHeads = 2, kHeldDim = 4, kHeldTokens = 40;
constexpr Windows kHeldWindows{2, 5};

/// Diagonal, and different for each KV head, so that its inverse is plain to see.
Transform stretched(bool with_mean) {
  Transform transform{MatrixStack(kHeldKvHeads, kHeldDim), MatrixStack(kHeldKvHeads, kHeldDim), {}};
  for (int h = 0; h < kHeldKvHeads; ++h) {
    for (int i = 0; i < kHeldDim; ++i) {
      const double factor = std::ldexp(1.0, i - h);
      transform.rotation[h][static_cast<std::size_t>(i * kHeldDim + i)] = factor;
      transform.read_rotation[h][static_cast<std::size_t>(i * kHeldDim + i)] = 1 / factor;
    }
  }
  if (with_mean) transform.mean = {1, -2, 3, 0.5, -1, 0, 2, 4};
  return transform;
}

struct HeldRows {
  std::vector<float> q = gaussian_floats(kHeldTokens * kHeldHeads * kHeldDim, 1),
                     k = gaussian_floats(kHeldTokens * kHeldKvHeads * kHeldDim, 2), v = gaussian_floats(k.size(), 3),
                     decoded_k = gaussian_floats(k.size(), 4), decoded_v = gaussian_floats(k.size(), 5);
  [[nodiscard]] SequenceInput input() const {
    SequenceInput input;
    input.qkv = {heads_view(q, kHeldTokens, kHeldHeads, kHeldDim), rows(k), rows(v)};
    input.precision = Precision::kExact;
    return input;
  }
  [[nodiscard]] static HeadsView rows(const std::vector<float>& x) {
    return heads_view(x, kHeldTokens, kHeldKvHeads, kHeldDim);
  }
  [[nodiscard]] std::vector<float> attend(const SequenceInput& input, const HistoryCodecs& codecs) const {
    std::vector<float> out(q.size());
    cpu::hold(input)->attend(codecs, kHeldWindows, out);
    return out;
  }
};

}  // namespace

TEST_CASE("a transform and its read side, and a mean key, leave attention as it was") {
  const HeldRows s;
  const Transform key = stretched(true), value = stretched(false);
  SequenceInput input = s.input();
  const std::vector<float> plain = s.attend(input, {});
  input.key = &key, input.value = &value;
  CHECK(largest_difference(s.attend(input, {}), plain) < 1e-5);
  // The codec sees the transformed rows, so here it makes a difference.
  SequenceInput only_values = s.input();
  only_values.value = &value;
  CHECK(largest_difference(s.attend(input, {RowCodec{}, {}}), s.attend(only_values, {RowCodec{}, {}})) > 1e-3);
}

TEST_CASE("row errors of a transform that stretches are those of the native rows") {
  const HeldRows s;
  const Transform key = stretched(true);
  SequenceInput input = s.input();
  input.key = &key;
  const std::vector<RowErrors> errors = cpu::hold(input)->row_errors({RowCodec{}, {}}, kHeldWindows);
  REQUIRE(errors.size() == kHeldKvHeads);
  std::array<double, kHeldKvHeads> signal{}, noise{};
  for (int t = kHeldWindows.sink; t < kHeldTokens - kHeldWindows.recent; ++t) {
    for (int h = 0; h < kHeldKvHeads; ++h) {
      std::vector<float> row(kHeldDim), decoded(kHeldDim);
      for (int i = 0; i < kHeldDim; ++i) {
        const float x = s.k[static_cast<std::size_t>((t * kHeldKvHeads + h) * kHeldDim + i)];
        signal[static_cast<std::size_t>(h)] += double{x} * x;
        row[static_cast<std::size_t>(i)] =
            (x - static_cast<float>(key.mean[static_cast<std::size_t>(h * kHeldDim + i)])) * std::ldexp(1.0F, i - h);
      }
      cpu::quantize(row, kHeldDim, RowCodec{}, Precision::kExact, decoded, nullptr);
      for (int i = 0; i < kHeldDim; ++i) {
        const double e =
            std::ldexp(double{row[static_cast<std::size_t>(i)]} - decoded[static_cast<std::size_t>(i)], h - i);
        noise[static_cast<std::size_t>(h)] += e * e;
      }
    }
  }
  for (std::size_t h = 0; h < errors.size(); ++h) {
    CHECK(errors[h].key_signal == doctest::Approx(signal[h]).epsilon(1e-6));
    CHECK(errors[h].key_noise == doctest::Approx(noise[h]).epsilon(1e-5));
    CHECK(errors[h].value_noise == 0);
  }
}

TEST_CASE("formats of the coded cache must be as many as KV heads") {
  const HeldRows s;
  HistoryCodec codec;
  codec.coded = std::make_shared<const std::vector<CodedFormat>>(1);
  CHECK_THROWS_AS(s.attend(s.input(), {codec, {}}), std::logic_error);
}

TEST_CASE("KV heads may have clip ratios of their own") {
  const HeldRows s;
  const auto with = [&](double first, double second) {
    return s.attend(s.input(), {HistoryCodec{{}, {first, second}}, HistoryCodec{{}, {second, first}}});
  };
  const auto uniform = [&](double key, double value) {
    return s.attend(s.input(), {RowCodec{.clip_ratio = key}, RowCodec{.clip_ratio = value}});
  };
  CHECK(with(0.5, 0.5) == uniform(0.5, 0.5));
  const std::vector<float> mixed = with(0.5, 0), first = uniform(0.5, 0), second = uniform(0, 0.5);
  CHECK(first != second);
  for (std::size_t i = 0; i < mixed.size(); ++i) {
    const bool of_second_head = i / kHeldDim % kHeldHeads >= kHeldHeads / kHeldKvHeads;
    REQUIRE(mixed[i] == (of_second_head ? second : first)[i]);
  }
  CHECK_THROWS_AS(s.attend(s.input(), {HistoryCodec{{}, {0.5}}, {}}), std::logic_error);
}

TEST_CASE("given rows are the history of their side, for every codec but none") {
  const HeldRows s;
  SequenceInput given = s.input();
  given.decoded_k = HeldRows::rows(s.decoded_k), given.decoded_v = HeldRows::rows(s.decoded_v);
  CHECK(s.attend(given, {}) == s.attend(s.input(), {}));
  const std::vector<float> both = s.attend(given, {RowCodec{}, RowCodec{}});
  CHECK(both == s.attend(given, {RowCodec{.levels = 16}, RowCodec{.levels = 8}}));
  CHECK(largest_difference(both, s.attend(s.input(), {RowCodec{}, RowCodec{}})) > 1e-3);
  // The last query sees 33 of the 40 keys as history: exchange those rows by hand.
  HeldRows exchanged = s;
  for (std::size_t i = 0; i < s.k.size(); ++i) {
    const auto t = static_cast<int>(i / (kHeldKvHeads * kHeldDim));
    if (t < kHeldWindows.sink || t > kHeldTokens - 1 - kHeldWindows.recent) continue;
    exchanged.k[i] = s.decoded_k[i], exchanged.v[i] = s.decoded_v[i];
  }
  const std::vector<float> expected = exchanged.attend(exchanged.input(), {});
  const std::size_t last = (kHeldTokens - 1) * kHeldHeads * kHeldDim;
  for (std::size_t i = last; i < both.size(); ++i) CHECK(both[i] == doctest::Approx(expected[i]).epsilon(1e-5));
}

}  // namespace oscar
