// SPDX-License-Identifier: MIT
#include "moments/blocks.hpp"

#include <doctest/doctest.h>

#include <random>

#include "moments/take.hpp"
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

}  // namespace oscar
