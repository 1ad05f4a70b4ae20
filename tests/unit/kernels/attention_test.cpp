// SPDX-License-Identifier: MIT
// What attention on the CPU promises beside agreement with the reference: the same bits for any number of threads and
// for candidates together or alone, what becomes of tiny probabilities, that a transform and its read side cancel, and
// codecs that do not fit the heads are refused.
#include <doctest/doctest.h>

#include <cmath>

#include "base/exp.hpp"
#include "base/threads.hpp"
#include "conformance/samples.hpp"
#include "kernels/cpu/ops.hpp"
#include "kernels/reference/reference_backend.hpp"

namespace oscar {

using namespace test;

namespace {

/// Diagonal, and different for each KV head, so that its inverse is plain to see.
Transform stretched(const Sequence& s, std::vector<double> mean) {
  const int dim = s.shape.head_dim;
  Transform transform{MatrixStack(s.kv_heads, dim), MatrixStack(s.kv_heads, dim), std::move(mean)};
  for (int h = 0; h < s.kv_heads; ++h) {
    for (int i = 0; i < dim; ++i) {
      const double factor = std::ldexp(1.0, i - h);
      transform.rotation[h][static_cast<std::size_t>(i * dim + i)] = factor;
      transform.read_rotation[h][static_cast<std::size_t>(i * dim + i)] = 1 / factor;
    }
  }
  return transform;
}

std::vector<float> attend(const Sequence& s, const SequenceInput& input, const HistoryCodecs& codecs) {
  std::vector<float> out(s.out_size());
  cpu::hold(input)->attend(codecs, {2, 5}, out);
  return out;
}

}  // namespace

TEST_CASE("a transform and its read side, and a mean key, leave attention as it was") {
  const Sequence s({DType::kF32, 4, 40}, 4, 2, {});
  const Transform key = stretched(s, {1, -2, 3, 0.5, -1, 0, 2, 4}), value = stretched(s, {});
  const SequenceInput plain = s.input(Precision::kExact, false);
  SequenceInput turned = plain, only_values = plain;
  turned.key = &key, turned.value = &value, only_values.value = &value;
  CHECK(largest_difference(attend(s, turned, {}), attend(s, plain, {})) < 1e-5);
  // The codec sees the transformed rows, so here it makes a difference.
  CHECK(largest_difference(attend(s, turned, {RowCodec{}, {}}), attend(s, only_values, {RowCodec{}, {}})) > 1e-3);
}

TEST_CASE("formats of the coded cache and clip ratios must be as many as KV heads") {
  const Sequence s({DType::kF32, 8, 40}, 4, 2, {});
  const SequenceInput input = s.input(Precision::kExact, false);
  CHECK_THROWS_AS(attend(s, input, {coded(1, 8), {}}), std::logic_error);
  CHECK_THROWS_AS(attend(s, input, {HistoryCodec{{}, {0.5}}, {}}), std::logic_error);
  CHECK_NOTHROW(attend(s, input, {coded(2, 8), HistoryCodec{{}, {0.5, 0.9}}}));
}

TEST_CASE("exp of what softmax feeds it is accurate to the last bits") {
  std::vector<double> x;
  std::vector<float> y;
  for (int i = 0; i <= 7000; ++i) x.push_back(-0.1 * i), y.push_back(-0.0124F * static_cast<float>(i));
  std::vector<double> exp_x = x;
  std::vector<float> exp_y = y;
  exp_in_place(std::span<double>(exp_x));
  exp_in_place(std::span<float>(exp_y));
  for (std::size_t i = 0; i < x.size(); ++i) {
    REQUIRE(std::abs(exp_x[i] / std::exp(x[i]) - 1) < 1e-15);
    REQUIRE(std::abs(exp_y[i] / std::exp(double{y[i]}) - 1) < 3e-7);
  }
  std::vector<double> ends{0.0, -709.0, -1e300, -INFINITY};
  exp_in_place(std::span<double>(ends));
  CHECK(ends == std::vector<double>{1.0, 0.0, 0.0, 0.0});
}

TEST_CASE("candidates that are compared together give the same bits as each alone") {
  const Sequence s({DType::kF32, 64, 70}, 4, 2, {});
  const RowCodec coarse{.levels = 3}, fine{.levels = 8, .group_size = 16};
  const std::vector<HistoryCodecs> candidates{{coarse, coarse}, {{}, coarse}, {coarse, fine}, {fine, fine}};
  const auto held = cpu::hold(s.input(Precision::kServing));
  const auto together = held->compare(candidates, {3, 9});
  REQUIRE(together.size() == 4);
  for (std::size_t i = 0; i < together.size(); ++i) {
    const auto alone = held->compare(std::span(candidates).subspan(i, 1), {3, 9}).front();
    for (std::size_t head = 0; head < alone.size(); ++head) {
      CHECK(together[i][head].query_kl == alone[head].query_kl);
      CHECK(together[i][head].output_error == alone[head].output_error);
      CHECK(together[i][head].logit_error == alone[head].logit_error);
    }
  }
  CHECK(together[0][0].softmax_kl != together[1][0].softmax_kl);
  CHECK(together[0][0].output_error != together[2][0].output_error);
}

TEST_CASE("probabilities below 1e-300 count as 1e-300") {
  // Of two equal keys the first is read as one that takes all attention.
  const std::vector<float> q{1e4F, 0, 0, 0}, zeros(8), decoded{1, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<std::int64_t> at{1};
  const HeadsView keys = heads_view(zeros, 2, 1, 4);
  const SequenceInput input{{heads_view(q, 1, 1, 4), keys, keys},
                            at,
                            nullptr,
                            nullptr,
                            Precision::kExact,
                            heads_view(decoded, 2, 1, 4),
                            heads_view(zeros, 2, 1, 4)};
  const HistoryCodecs given{RowCodec{}, RowCodec{}};
  const double expected = std::log(0.5) + 0.5 * 690.7755278982137;
  CHECK(cpu::hold(input)->compare({&given, 1}, {0, 1})[0][0].softmax_kl == doctest::Approx(expected));
  CHECK(reference::make_reference_backend()->hold(input)->compare({&given, 1}, {0, 1})[0][0].softmax_kl ==
        doctest::Approx(expected));
}

TEST_CASE("attention does not depend on the number of threads") {
  const Sequence s({DType::kF32, 64, 333}, 3, 1, {});
  const std::vector<HistoryCodecs> codecs = codecs_for(s);
  std::vector<std::vector<float>> outs;
  std::vector<std::vector<double>> sums;
  for (const int threads : {1, 2, 5}) {
    set_num_threads(threads);
    const auto held = cpu::hold(s.input(Precision::kServing));
    held->attend(codecs[0], {4, 16}, outs.emplace_back(s.out_size()));
    std::vector<double>& own = sums.emplace_back();
    for (const auto& heads : held->compare(codecs, {4, 16})) {
      for (const AttentionErrors& errors : heads) own.insert(own.end(), {errors.softmax_kl, errors.output_error});
    }
    for (const RowErrors& rows : held->row_errors(codecs[0], {4, 16}))
      own.insert(own.end(), {rows.key_noise, rows.value_noise});
  }
  set_num_threads(0);
  CHECK((outs[0] == outs[1] && outs[0] == outs[2]));
  CHECK((sums[0] == sums[1] && sums[0] == sums[2]));
}

}  // namespace oscar
