// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "base/threads.hpp"
#include "dump/source.hpp"
#include "moments/sums.hpp"
#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"
#include "tensor/hdf5.hpp"

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

constexpr std::int64_t kChunkTokens = 1500, kChunkBytes = kChunkTokens * 4 * 2 * (2 + 1 + 1);

/// Returns how many chunks each block has.
std::vector<int> blocks_of(const std::vector<test::MemoryChunk>& chunks, const WorkShape& shape) {
  test::MemoryStream layer(chunks);
  BlockCut cut(shape, std::ssize(chunks) * kChunkBytes);
  std::vector<int> blocks{0};
  for (QkvChunk chunk; layer.next(chunk);) {
    ++blocks.back();
    if (cut.after(chunk) == BlockCut::End::kBlock) blocks.push_back(0);
  }
  if (blocks.back() == 0) blocks.pop_back();
  return blocks;
}

/// Largest difference of M u from the oracle's, over the largest of those; u_i = cos(i).
double error_of(const MatrixStack& moments, std::span<const double> expected) {
  REQUIRE(moments.count == 1);
  const auto d = static_cast<std::size_t>(moments.dim);
  REQUIRE(expected.size() == d);
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < d; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < d; ++j) sum += moments[0][i * d + j] * std::cos(static_cast<double>(j));
    error = std::max(error, std::abs(sum - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return error / largest;
}

}  // namespace

TEST_CASE("moments of a hand-checkable layer") {
  const auto backend = test::make_test_backend();
  const auto chunks = tiny();
  test::MemoryStream layer(chunks);

  // q^T q: (1,0) (0,2) (3,1) (1,1) -> [[11, 4], [4, 6]] / 4
  const MatrixStack c = take(layer, Moment::kQqt, *backend).mean();
  CHECK(c.data == std::vector<double>{2.75, 1, 1, 1.5});
  CHECK(take(layer, Moment::kKtk, *backend).mean().data == std::vector<double>{1, 0.5, 0.5, 0.5});
  CHECK(take(layer, Moment::kVtv, *backend).mean().data == std::vector<double>{2, 0, 0, 8});
  // w = 2.75 and 6.25: v^T v weighted / 9
  const MatrixStack sst = take_sst(layer, c, *backend).mean();
  CHECK(sst.data[0] == doctest::Approx(4 * 2.75 / 9));
  CHECK(sst.data[3] == doctest::Approx(16 * 6.25 / 9));
}

TEST_CASE("moments have the same bits whatever the thread count, and parts merge to the whole") {
  const auto backend = test::make_test_backend();
  const auto chunks = random_chunks(5000, 2, 6, 2, 16);
  const auto observe = [&](const std::vector<test::MemoryChunk>& part, int threads) {
    set_num_threads(threads);
    test::MemoryStream layer(part);
    return take(layer, Moment::kQqt, *backend);
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
  const auto take_of = [&](const std::vector<test::MemoryChunk>& part) {
    test::MemoryStream layer(part);
    AdditiveMoments sums = take(layer, {.moments = {Moment::kFisher, Moment::kKeys}, .windows = windows}, *backend);
    return std::pair(std::move(*sums.fisher), std::move(*sums.keys));
  };
  const auto [fisher, keys] = take_of(chunks);
  auto [merged, merged_keys] = take_of({chunks[0]});
  CHECK(merged.weight[0] < 0.9 * fisher.weight[0]);
  merge(merged, take_of({chunks[1]}).first);
  merged_keys.merge(take_of({chunks[1]}).second);
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
  const AdditiveMoments short_of = take(layer, {.moments = {Moment::kFisher}, .windows = longer}, *backend);
  CHECK_ERROR(mean(*short_of.fisher, longer), DataError, "no sequence is longer");
}

TEST_CASE("NaN and Inf are found and named") {
  const auto backend = test::make_test_backend();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto chunks = tiny();
    chunks[0].q.values<float>()[6] = bad;  // token 1, head 1
    test::MemoryStream layer(chunks);
    CHECK_ERROR(take(layer, Moment::kQqt, *backend), DataError, "q has NaN or Inf | chunk 0, token 1, head 1");
  }
}

TEST_CASE("a layer without tokens is an error") {
  const auto backend = test::make_test_backend();
  const std::vector<test::MemoryChunk> none;
  test::MemoryStream layer(none);
  CHECK_ERROR(take(layer, Moment::kQqt, *backend), DataError, "no tokens");
}

TEST_CASE("a head of zeros, or whose squares leave float32, is refused by name") {
  const auto backend = test::make_test_backend();
  const auto taken = [&](float value, Moment moment) {
    std::vector<test::MemoryChunk> chunks = tiny();
    for (Tensor* rows : {&chunks[0].q, &chunks[0].v}) std::ranges::fill(rows->values<float>(), value);
    test::MemoryStream layer(chunks);
    if (moment != Moment::kSst) return take(layer, moment, *backend).total;
    return take_sst(layer, take(layer, Moment::kQqt, *backend).mean(), *backend).total;
  };
  CHECK_ERROR(taken(0, Moment::kQqt), DataError, "every q of KV head 0 is zero");
  CHECK_ERROR(taken(0, Moment::kVtv), DataError, "every v of KV head 0 is zero");
  CHECK_ERROR(taken(1e-30F, Moment::kVtv), DataError, "every v of KV head 0 is so small");
  CHECK_ERROR(taken(1e-17F, Moment::kSst), DataError, "every v of KV head 0 is so small");  // as are their weights
  CHECK_ERROR(taken(3e38F, Moment::kQqt), DataError, "a q of KV head 0 is so small, or so large");
  CHECK(taken(1e-18F, Moment::kVtv) == std::vector<double>{2});
  CHECK(taken(0, Moment::kKtk) == std::vector<double>{2});
}

TEST_CASE("a head of zeros among good ones is refused by name, whichever sums meet it") {
  const auto backend = test::make_test_backend();
  const auto taken = [&](Tensor test::MemoryChunk::*side, bool fisher) {
    std::vector<test::MemoryChunk> chunks = random_chunks(60, 1, 6, 2, 4);
    Tensor rows = convert(chunks[0].*side, DType::kF32);
    for (std::size_t i = 0; i < rows.values<float>().size(); ++i) rows.values<float>()[i] *= i % 8 < 4 ? 1.0F : 0.0F;
    chunks[0].*side = convert(rows, DType::kBF16);
    test::MemoryStream layer(chunks);
    if (fisher) return take(layer, {.moments = {Moment::kFisher}, .windows = {4, 8}}, *backend).fisher->weight;
    return take_sst(layer, take(layer, Moment::kQqt, *backend).mean(), *backend).total;
  };
  CHECK_ERROR(taken(&test::MemoryChunk::k, false), DataError, "every k of KV head 1 is zero");
  CHECK_ERROR(taken(&test::MemoryChunk::v, false), DataError, "every v of KV head 1 is zero");
  CHECK_ERROR(taken(&test::MemoryChunk::k, true), DataError, "every k of KV head 1 is zero");
  CHECK(taken(&test::MemoryChunk::v, true).size() == 2);
}

TEST_CASE("a head that feels nothing of the history is told from sequences without one") {
  FisherSums sums(2, 4);
  CHECK_ERROR((void)mean(sums, {4, 8}), DataError, "no sequence is longer than the windows");
  sums.weight[0] = 1;
  CHECK_ERROR((void)mean(sums, {4, 8}), DataError, "feels no error in keys of the history");
  CHECK_ERROR((void)mean(FisherSums(1, 4), {4, 8}), DataError, "or each query reads one key alone");
}

TEST_CASE("blocks end with the call in which they are full") {
  const auto chunks = random_chunks(kChunkTokens, 8, 2, 1, 4);
  CHECK(blocks_of(chunks, {}) == std::vector{3, 3, 2});
  CHECK(blocks_of(chunks, {.bytes_per_call = std::int64_t{1} << 40}) == std::vector{8});
  CHECK(blocks_of(chunks, {.bytes_per_call = 4 * kChunkBytes}) == std::vector{4, 4});
  CHECK(blocks_of({}, {}).empty());
}

// The oracle has each moment M as M u with u_i = cos(i): a matrix that differs from M anywhere gives another vector.
TEST_CASE("all moments of a real dump equal an independent numpy's") {
  const Hdf5Reader oracle(test::data("moments/oracle_moments.h5"));
  const auto backend = test::make_test_backend();
  Status status;
  const auto source = open_dump(test::published_fits().back() / "dump", {}, status);
  for (const int layer : source->layer_ids()) {
    CAPTURE(layer);
    const auto stream = source->open(layer);
    const auto expected = [&](const std::string& name) {
      const Tensor all = oracle.read("/" + name);
      const auto d = static_cast<std::size_t>(all.shape[1]);
      const auto values = all.values<double>().subspan(static_cast<std::size_t>(layer) * d, d);
      return std::vector<double>(values.begin(), values.end());
    };
    const MatrixStack queries = take(*stream, Moment::kQqt, *backend).mean();
    CHECK(error_of(queries, expected("query_moments")) < 1e-9);
    CHECK(error_of(take(*stream, Moment::kKtk, *backend).mean(), expected("key_moments")) < 1e-9);
    CHECK(error_of(take_sst(*stream, queries, *backend).mean(), expected("sst")) < 1e-9);
  }
}

}  // namespace oscar
