// SPDX-License-Identifier: MIT
#include "moments/blocks.hpp"

#include <doctest/doctest.h>

#include <random>

#include "moments/moments.hpp"
#include "support/backend.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kTokens = 1500;  // three chunks are a block

std::vector<test::MemoryChunk> chunks_of(int count) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  const auto rows = [&](int heads) {
    Tensor tensor(DType::kF32, {kTokens, heads, 4});
    for (float& value : tensor.values<float>()) value = normal(random);
    return tensor;
  };
  std::vector<test::MemoryChunk> chunks;
  for (int i = 0; i < count; ++i) {
    chunks.push_back({rows(2), rows(1), rows(1), {{0, 40}, {40, kTokens}}});
  }
  return chunks;
}

}  // namespace

TEST_CASE("blocks end with the call in which they are full") {
  const auto chunks = chunks_of(8);
  test::MemoryStream layer(chunks);
  CHECK(ends_of_blocks(layer, {}).size() == 3);
  CHECK(ends_of_blocks(layer, {.bytes_per_call = std::int64_t{1} << 40}).size() == 1);
  const std::int64_t chunk_bytes = kTokens * 4 * 4 * (2 + 1 + 1);
  CHECK(ends_of_blocks(layer, {.bytes_per_call = 4 * chunk_bytes}).size() == 2);
  const std::vector<test::MemoryChunk> none;
  test::MemoryStream empty(none);
  CHECK(ends_of_blocks(empty, {}).size() == 0);
}

TEST_CASE("a range of blocks is their chunks, as often as it is read") {
  const auto chunks = chunks_of(8);
  test::MemoryStream layer(chunks);
  const auto middle = blocks_of(layer, {1, 2}, {}), end = blocks_of(layer, {2, INT64_MAX}, {});
  const auto read = [](LayerStream& stream) {
    std::string names;
    QkvChunk chunk;
    stream.rewind();
    while (stream.next(chunk)) names += chunk.where + " ";
    return names;
  };
  CHECK(read(*middle) == "chunk 3 chunk 4 chunk 5 ");
  CHECK(read(*middle) == "chunk 3 chunk 4 chunk 5 ");
  CHECK(read(*end) == "chunk 6 chunk 7 ");
  CHECK(read(*blocks_of(layer, {7, 9}, {})).empty());
}

TEST_CASE("sums of blocks, added in order, have the bits of the whole layer's") {
  const auto backend = test::make_test_backend();
  const WorkShape shape = backend->work_shape();
  const auto chunks = chunks_of(8);
  test::MemoryStream layer(chunks);
  const MomentSums whole = query_moments(layer, *backend);
  const FisherSums fisher = fisher_sums(layer, {2, 3}, *backend);
  const KeySums keys = key_sums(layer, *backend);
  const auto first = blocks_of(layer, {0, 2}, shape);
  MomentSums sum = query_moments(*first, *backend);
  FisherSums fisher_sum = fisher_sums(*first, {2, 3}, *backend);
  KeySums key_sum = key_sums(*first, *backend);
  for (std::int64_t block = 2; block < std::ssize(ends_of_blocks(layer, shape)); ++block) {
    const auto next = blocks_of(layer, {block, block + 1}, shape);
    sum.merge(query_moments(*next, *backend));
    merge(fisher_sum, fisher_sums(*next, {2, 3}, *backend));
    key_sum.merge(key_sums(*next, *backend));
  }
  CHECK(sum.sums.data == whole.sums.data);
  CHECK(sum.total == whole.total);
  CHECK(fisher_sum.query.data == fisher.query.data);
  CHECK(fisher_sum.key.data == fisher.key.data);
  CHECK(fisher_sum.weight == fisher.weight);
  CHECK(key_sum.sums == keys.sums);
}

}  // namespace oscar
