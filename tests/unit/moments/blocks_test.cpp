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

/// Returns how many chunks each block has.
std::vector<int> blocks_of(const std::vector<test::MemoryChunk>& chunks, const WorkShape& shape) {
  test::MemoryStream layer(chunks);
  const std::int64_t bytes = std::ssize(chunks) * kTokens * 4 * 4 * (2 + 1 + 1);
  BlockCut cut(shape, bytes);
  std::vector<int> blocks{0};
  for (QkvChunk chunk; layer.next(chunk);) {
    ++blocks.back();
    if (cut.after(chunk) == BlockCut::End::kBlock) blocks.push_back(0);
  }
  if (blocks.back() == 0) blocks.pop_back();
  return blocks;
}

}  // namespace

TEST_CASE("blocks end with the call in which they are full") {
  const auto chunks = chunks_of(8);
  CHECK(blocks_of(chunks, {}) == std::vector{3, 3, 2});
  CHECK(blocks_of(chunks, {.bytes_per_call = std::int64_t{1} << 40}) == std::vector{8});
  CHECK(blocks_of(chunks, {.bytes_per_call = 4 * kTokens * 4 * 4 * (2 + 1 + 1)}) == std::vector{4, 4});
  CHECK(blocks_of({}, {}).empty());
}

}  // namespace oscar
