// SPDX-License-Identifier: MIT
#include "moments/moments.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/threads.hpp"
#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

Tensor rows(std::vector<std::int64_t> shape, const std::vector<float>& values) {
  return Tensor::from(std::move(shape), std::span(values));
}

/// Two tokens, two query heads on one KV head, d = 2.
std::vector<test::MemoryChunk> tiny() {
  return {{rows({2, 2, 2}, {1, 0, 0, 2, 3, 1, 1, 1}),
           rows({2, 1, 2}, {1, 0, 1, 1}),
           rows({2, 1, 2}, {2, 0, 0, 4}),
           {{0, 2}}}};
}

std::vector<test::MemoryChunk> random_chunks(std::int64_t tokens, int chunks, int heads, int kv_heads, int dim) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto make = [&](int h) {
    Tensor tensor(DType::kF32, {tokens, h, dim});
    for (float& value : tensor.values<float>()) value = normal(random);
    return convert(tensor, DType::kBF16);
  };
  std::vector<test::MemoryChunk> out;
  for (int i = 0; i < chunks; ++i) out.push_back({make(heads), make(kv_heads), make(kv_heads), {{0, tokens}}});
  return out;
}

}  // namespace

TEST_CASE("moments of a hand-checkable layer") {
  const auto backend = test::make_test_backend();
  const auto chunks = tiny();
  test::MemoryStream layer(chunks);

  // q^T q: (1,0) (0,2) (3,1) (1,1) -> [[11, 4], [4, 6]] / 4
  const MatrixStack c = query_moments(layer, *backend).mean();
  CHECK(c.data == std::vector<double>{2.75, 1, 1, 1.5});
  CHECK(plain_moments(layer, Side::kKey, *backend).mean().data == std::vector<double>{1, 0.5, 0.5, 0.5});
  CHECK(plain_moments(layer, Side::kValue, *backend).mean().data == std::vector<double>{2, 0, 0, 8});
  // w = 2.75 and 6.25: v^T v weighted / 9
  const MatrixStack sst = score_weighted_value_moments(layer, c, *backend).mean();
  CHECK(sst.data[0] == doctest::Approx(4 * 2.75 / 9));
  CHECK(sst.data[3] == doctest::Approx(16 * 6.25 / 9));
  // Outputs: token 0 gives v0 = (2, 0) for both heads; token 1 mixes v0 and v1 with softmax weights.
  const double a =
      1 / (1 + std::exp(-1 / std::sqrt(2.0)));  // weight of key 1: logits differ by 1 / sqrt 2 in both heads
  const MatrixStack oto = output_moments(layer, *backend).mean();
  CHECK(oto.data[0] == doctest::Approx((2 * 4 + 2 * std::pow(2 * (1 - a), 2)) / 4));
  CHECK(oto.data[3] == doctest::Approx(2 * 16 * a * a / 4));
}

TEST_CASE("residual moments are those of the INT2 error of rotated rows") {
  const auto backend = test::make_test_backend();
  const std::vector<test::MemoryChunk> chunks{
      {rows({1, 1, 4}, {0, 0, 0, 0}), rows({1, 1, 4}, {0, 1, 2.4F, 3}), rows({1, 1, 4}, {0, 0, 0, 0}), {{0, 1}}}};
  test::MemoryStream layer(chunks);
  // s = 1, z = 0: only 2.4 -> 2 has an error, -0.4.
  const MatrixStack e = residual_moments(layer, Side::kKey, MatrixStack::identity(4), *backend).mean();
  CHECK(e.data[10] == doctest::Approx(0.16));
  CHECK(e.data[0] + e.data[5] + e.data[15] == doctest::Approx(0).epsilon(1e-12));
}

TEST_CASE("moments have the same bits whatever the thread count, and parts merge to the whole") {
  const auto backend = test::make_test_backend();
  const auto chunks = random_chunks(5000, 2, 6, 2, 16);
  const auto observe = [&](const std::vector<test::MemoryChunk>& part, int threads) {
    set_num_threads(threads);
    test::MemoryStream layer(part);
    return query_moments(layer, *backend);
  };

  const MomentSums whole = observe(chunks, 1);

  CHECK(observe(chunks, 5).sums.data == whole.sums.data);
  MomentSums merged = observe({chunks[0]}, 2);
  merged.merge(observe({chunks[1]}, 3));
  set_num_threads(0);
  for (std::size_t i = 0; i < whole.sums.data.size(); ++i) {
    CHECK(merged.sums.data[i] == doctest::Approx(whole.sums.data[i]).epsilon(1e-12));
  }
  CHECK(merged.total == whole.total);
  CHECK_ERROR(merged.merge(MomentSums{MatrixStack(1, 16), {1.0}}), DataError, "different shape");
}

TEST_CASE("fisher sums and keys of parts add up to those of the whole") {
  const auto backend = test::make_test_backend();
  const auto chunks = random_chunks(60, 2, 6, 2, 4);
  const Windows windows{4, 8};
  const auto take = [&](const std::vector<test::MemoryChunk>& part) {
    test::MemoryStream layer(part);
    return std::pair(fisher_sums(layer, windows, *backend), key_sums(layer, *backend));
  };
  const auto [fisher, keys] = take(chunks);
  auto [merged, merged_keys] = take({chunks[0]});
  CHECK(merged.weight[0] < 0.9 * fisher.weight[0]);
  merge(merged, take({chunks[1]}).first);
  merged_keys.merge(take({chunks[1]}).second);
  const FisherMoments got = mean(merged, windows), expected = mean(fisher, windows);
  for (const auto& [a, b] :
       {std::pair{&got.query.data, &expected.query.data}, std::pair{&got.key.data, &expected.key.data},
        std::pair{&got.key_mean, &expected.key_mean}}) {
    for (std::size_t i = 0; i < a->size(); ++i) CHECK((*a)[i] == doctest::Approx((*b)[i]).epsilon(1e-12));
  }
  const std::vector<double> mean_key = keys.mean(), merged_mean = merged_keys.mean();
  CHECK(merged_keys.tokens == 120);
  for (std::size_t i = 0; i < mean_key.size(); ++i)
    CHECK(merged_mean[i] == doctest::Approx(mean_key[i]).epsilon(1e-12));
  test::MemoryStream layer(chunks);
  const Windows longer{40, 40};
  CHECK_ERROR(mean(fisher_sums(layer, longer, *backend), longer), DataError, "no sequence is longer");
}

TEST_CASE("NaN and Inf are found and named") {
  const auto backend = test::make_test_backend();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto chunks = tiny();
    chunks[0].q.values<float>()[6] = bad;  // token 1, head 1
    test::MemoryStream layer(chunks);
    CHECK_ERROR(query_moments(layer, *backend), DataError, "q has NaN or Inf | chunk 0, token 1, head 1");
  }
}

TEST_CASE("a layer without tokens is an error") {
  const auto backend = test::make_test_backend();
  const std::vector<test::MemoryChunk> none;
  test::MemoryStream layer(none);
  CHECK_ERROR(query_moments(layer, *backend), DataError, "no tokens");
}

TEST_CASE("a layer of nothing but zeros is refused by name") {
  const auto backend = test::make_test_backend();
  auto chunks = tiny();
  chunks[0].q = Tensor(DType::kF32, {2, 2, 2});
  chunks[0].v = Tensor(DType::kF32, {2, 1, 2});
  test::MemoryStream layer(chunks);
  CHECK_ERROR(query_moments(layer, *backend), DataError, "every q of this layer is zero");
  CHECK_ERROR(plain_moments(layer, Side::kValue, *backend), DataError, "every v of this layer is zero");
  CHECK(plain_moments(layer, Side::kKey, *backend).total == std::vector<double>{2});
}

}  // namespace oscar
