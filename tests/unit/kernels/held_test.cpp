// SPDX-License-Identifier: MIT
// What transforms and given rows do to a held sequence.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>

#include "kernels/cpu/ops.hpp"
#include "kernels/reference/coded_attention.hpp"
#include "support/support.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

using test::gaussian;

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

struct Sequence {
  std::vector<float> q = gaussian(kHeldTokens * kHeldHeads * kHeldDim, 1),
                     k = gaussian(kHeldTokens * kHeldKvHeads * kHeldDim, 2), v = gaussian(k.size(), 3),
                     decoded_k = gaussian(k.size(), 4), decoded_v = gaussian(k.size(), 5);
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

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

}  // namespace

TEST_CASE("a transform and its read side, and a mean key, leave attention as it was") {
  const Sequence s;
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
  const Sequence s;
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

TEST_CASE("a history of coded rows is read as the reference reads its bytes") {
  constexpr int kDim = 16, kKvHeads = 2, kHeads = 4, kTokens = 30;
  const Windows windows{2, 5};
  const std::vector<float> q = gaussian(kTokens * kHeads * kDim, 1), k = gaussian(kTokens * kKvHeads * kDim, 2),
                           v = gaussian(k.size(), 3);
  const auto formats = [](std::vector<std::vector<int>> blocks) {
    auto out = std::make_shared<std::vector<CodedFormat>>();
    for (const std::vector<int>& head : blocks) {
      CodedFormat& format = out->emplace_back();
      for (const int levels : head) {
        format.levels.insert(format.levels.end(), 8, levels);
        format.step.insert(format.step.end(), 8, 3.0F / static_cast<float>(levels));
        format.sigma.insert(format.sigma.end(), 8, 1.0F);
      }
    }
    return out;
  };
  HistoryCodecs codecs{HistoryCodec{}, HistoryCodec{}};
  codecs.key->coded = formats({{32, 4}, {8, 1}}), codecs.value->coded = formats({{4, 4}, {64, 2}});
  SequenceInput input;
  input.qkv = {heads_view(q, kTokens, kHeads, kDim), heads_view(k, kTokens, kKvHeads, kDim),
               heads_view(v, kTokens, kKvHeads, kDim)};
  input.precision = Precision::kExact;
  std::vector<float> out(q.size());
  cpu::hold(input)->attend(codecs, windows, out);
  // The last query by the reference, for each of its heads.
  for (std::size_t head = 0; head < kHeads; ++head) {
    const std::size_t kv_head = head / 2;
    struct Packed {
      std::vector<float> sink, recent;
      std::vector<std::uint8_t> bytes;
    };
    const auto pack = [&](const std::vector<float>& rows, const CodedFormat& format) {
      Packed packed;
      for (std::size_t t = 0; t < kTokens; ++t) {
        const std::span<const float> row(rows.data() + (t * kKvHeads + kv_head) * kDim, kDim);
        std::vector<std::uint8_t> bytes(reference::coded_row_bytes(format));
        reference::encode_coded_row(format, row, bytes);
        const bool is_sink = t < 2, is_recent = t + 5 >= kTokens;
        if (is_sink) packed.sink.insert(packed.sink.end(), row.begin(), row.end());
        if (is_recent) packed.recent.insert(packed.recent.end(), row.begin(), row.end());
        if (!is_sink && !is_recent) packed.bytes.insert(packed.bytes.end(), bytes.begin(), bytes.end());
      }
      return packed;
    };
    const CodedFormat &key = (*codecs.key->coded)[kv_head], &value = (*codecs.value->coded)[kv_head];
    const Packed keys = pack(k, key), values = pack(v, value);
    const std::size_t place = ((kTokens - 1) * kHeads + head) * kDim;
    const std::vector<double> query(q.begin() + static_cast<std::ptrdiff_t>(place),
                                    q.begin() + static_cast<std::ptrdiff_t>(place + kDim));
    const std::vector<double> expected =
        reference::coded_attention(query, 0.25, {keys.sink, {&key, keys.bytes}, keys.recent},
                                   {values.sink, {&value, values.bytes}, values.recent});
    for (std::size_t c = 0; c < kDim; ++c) CHECK(double{out[place + c]} == doctest::Approx(expected[c]).epsilon(1e-4));
  }
  codecs.key->coded = formats({{4, 4}});
  CHECK_THROWS_AS(cpu::hold(input)->attend(codecs, windows, out), std::logic_error);
}

TEST_CASE("KV heads may have clip ratios of their own") {
  const Sequence s;
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
  const Sequence s;
  SequenceInput given = s.input();
  given.decoded_k = Sequence::rows(s.decoded_k), given.decoded_v = Sequence::rows(s.decoded_v);
  CHECK(s.attend(given, {}) == s.attend(s.input(), {}));
  const std::vector<float> both = s.attend(given, {RowCodec{}, RowCodec{}});
  CHECK(both == s.attend(given, {RowCodec{.levels = 16}, RowCodec{.levels = 8}}));
  CHECK(largest_difference(both, s.attend(s.input(), {RowCodec{}, RowCodec{}})) > 1e-3);
  // The last query sees 33 of the 40 keys as history: exchange those rows by hand.
  Sequence exchanged = s;
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
