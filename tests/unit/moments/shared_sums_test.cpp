// SPDX-License-Identifier: MIT
// Sums over a text that several processes share: the bits of one process's, in all of them.
#include "moments/shared_sums.hpp"

#include <doctest/doctest.h>

#include <random>

#include "moments/blocks.hpp"
#include "support/backend.hpp"
#include "support/shared_text.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

constexpr std::int64_t kChunkTokens = 1500;                               // three chunks are a block
constexpr std::int64_t kChunkBytes = kChunkTokens * 4 * 4 * (2 + 1 + 1);  // where rows have 4 values

std::vector<test::MemoryChunk> shared_chunks(int count, int dim = 4) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  const auto rows = [&](int heads) {
    Tensor tensor(DType::kF32, {kChunkTokens, heads, dim});
    for (float& value : tensor.values<float>()) value = normal(random);
    return tensor;
  };
  std::vector<test::MemoryChunk> chunks;
  for (int i = 0; i < count; ++i) chunks.push_back({rows(2), rows(1), rows(1), {{0, 40}, {40, kChunkTokens}}});
  return chunks;
}

std::vector<std::unique_ptr<LayerStream>> streams_of(const std::vector<std::vector<test::MemoryChunk>>& layers) {
  std::vector<std::unique_ptr<LayerStream>> streams;
  for (const auto& chunks : layers) streams.push_back(std::make_unique<test::MemoryStream>(chunks));
  return streams;
}

/// All sums of a layer, one number behind the other.
std::vector<double> all_sums(LayerStream& layer, Backend& backend) {
  AdditiveMoments all = take(layer,
                             {.moments = {Moment::kQqt, Moment::kKtk, Moment::kOto, Moment::kFisher, Moment::kKeys},
                              .windows = {2, 3},
                              .value_reads = true},
                             backend);
  MomentSums sst = take_sst(layer, all.sums.at(Moment::kQqt).mean(), backend);
  MomentSums residual = take_residual(layer, Side::kKey, MatrixStack::identity(4), backend);
  std::vector<double> numbers;
  const auto add = [&](auto& sums) {
    for (const std::span<double> part : numbers_of(sums)) numbers.insert(numbers.end(), part.begin(), part.end());
  };
  for (auto& [moment, sums] : all.sums) add(sums);
  add(*all.fisher), add(*all.keys), add(sst), add(residual);
  return numbers;
}

}  // namespace

TEST_CASE("ranks read whole blocks in order, about as many tokens each, and some none") {
  const std::vector<std::vector<test::MemoryChunk>> layers{shared_chunks(13)};  // blocks of 3, 3, 3, 3 and 1 chunk
  const auto streams = streams_of(layers);
  const auto ranges = [&](int size) {
    std::vector<ChunkRange> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(chunks_of_rank(streams, {}, rank, size));
    return all;
  };
  CHECK(ranges(1) == std::vector<ChunkRange>{{0, 13}});
  CHECK(ranges(2) == std::vector<ChunkRange>{{0, 6}, {6, 13}});
  CHECK(ranges(3) == std::vector<ChunkRange>{{0, 3}, {3, 9}, {9, 13}});
  for (int size = 1; size < 30; ++size) {
    std::size_t end = 0;
    for (const ChunkRange& range : ranges(size)) {
      CHECK(range.first == end);
      CHECK((range.last % 3 == 0 || range.last == 13));
      end = range.last;
    }
    CHECK(end == 13);
  }
}

TEST_CASE("where layers have rows of different width, ranks end where blocks of all of them end") {
  const std::vector<std::vector<test::MemoryChunk>> layers{shared_chunks(13), shared_chunks(13, 8)};
  const auto streams = streams_of(layers);
  const WorkShape shape{.bytes_per_call = 7 * kChunkBytes};  // 7 chunks of the first layer, 3 of the second
  CHECK(ends_of_blocks(*streams[0], shape) == std::vector<std::size_t>{6, 13});
  CHECK(ends_of_blocks(*streams[1], shape) == std::vector<std::size_t>{3, 6, 10, 13});
  CHECK(chunks_of_rank(streams, shape, 0, 2) == ChunkRange{0, 6});
  CHECK(chunks_of_rank(streams, shape, 1, 2) == ChunkRange{6, 13});
  CHECK(chunks_of_rank(streams, shape, 0, 5) == ChunkRange{0, 0});
  CHECK(chunks_of_rank(streams, shape, 1, 5) == ChunkRange{0, 6});
}

TEST_CASE("two and four processes get equal shares of a text that does not fit one call") {
  const std::vector<std::vector<test::MemoryChunk>> layers{shared_chunks(29)};
  const auto streams = streams_of(layers);
  for (const int chunks_a_call : {8, 11, 20}) {  // 4 calls; 3, which become 4; 2
    const WorkShape shape{.bytes_per_call = chunks_a_call * kChunkBytes};
    const int calls = chunks_a_call < 20 ? 4 : 2;
    for (int size = 2; size <= calls; size *= 2) {
      for (int rank = 0; rank < size; ++rank) {
        const ChunkRange own = chunks_of_rank(streams, shape, rank, size);
        const auto chunks = static_cast<int>(own.last - own.first);
        CHECK(std::abs(chunks * size - 29) <= size);
      }
    }
  }
}

TEST_CASE("all processes get the sums of one, whoever has no text and whoever adds them up") {
  const auto backend = test::make_test_backend();
  const std::vector<std::vector<test::MemoryChunk>> layers{shared_chunks(8)};
  test::MemoryStream whole(layers.front());
  const std::vector<double> expected = all_sums(whole, *backend);
  for (const int size : {2, 3, 5}) {
    for (const int fitter : {0, size - 1}) {
      CAPTURE(size);
      test::Board board;
      std::vector<std::vector<double>> found(static_cast<std::size_t>(size));
      test::on_ranks(size, [&](int rank) {
        const auto streams = streams_of(layers);
        const ChunkRange own = chunks_of_rank(streams, backend->work_shape(), rank, size);
        const TextShare share = board.share(rank, size);
        test::SharedStream stream(layers.front(), own, SharedLayer(share, 3, fitter));
        found[static_cast<std::size_t>(rank)] = all_sums(stream, *backend);
      });
      for (const std::vector<double>& each : found) CHECK(each == expected);
      CHECK(board.left() == 0);
    }
  }
}

TEST_CASE("zeros in one process's part are no loss, but in all of them they are") {
  const auto backend = test::make_test_backend();
  auto chunks = shared_chunks(6);
  const auto clear = [&](std::size_t chunk) {
    for (float& value : chunks[chunk].k.values<float>()) value = 0;
  };
  const auto take_together = [&] {
    test::Board board;
    test::on_ranks(2, [&](int rank) {
      const TextShare share = board.share(rank, 2);
      test::SharedStream stream(chunks, rank == 0 ? ChunkRange{0, 3} : ChunkRange{3, 6}, SharedLayer(share, 0, 0));
      (void)take(stream, Moment::kKtk, *backend);
    });
  };
  for (const std::size_t chunk : {0, 1, 2}) clear(chunk);
  CHECK_NOTHROW(take_together());
  for (const std::size_t chunk : {3, 4, 5}) clear(chunk);
  CHECK_ERROR(take_together(), DataError, "every k of this layer is zero");
}

}  // namespace oscar
