// SPDX-License-Identifier: MIT
#include "dump/rank_source.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <random>

#include "base/files.hpp"
#include "dump/source.hpp"
#include "support/memory_source.hpp"
#include "support/support.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

constexpr int kDim = 4;
constexpr std::int64_t kTokens = 40;

enum class Layout { kBeside, kInside, kFiles };

Tensor random_rows(int heads, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  Tensor tensor(DType::kF32, {kTokens, heads, kDim});
  for (float& value : tensor.values<float>()) value = normal(random);
  return convert(tensor, DType::kBF16);
}

/// Heads [begin, begin + count) of all tokens.
Tensor heads_of(const Tensor& all, int begin, int count) {
  Tensor part(all.dtype, {kTokens, count, kDim});
  const std::size_t row = kDim * size_of(all.dtype), heads = static_cast<std::size_t>(all.shape[1]);
  for (std::size_t t = 0; t < kTokens; ++t) {
    const std::byte* const from = all.data.data() + (t * heads + static_cast<std::size_t>(begin)) * row;
    std::copy_n(from, static_cast<std::size_t>(count) * row,
                part.data.data() + t * static_cast<std::size_t>(count) * row);
  }
  return part;
}

struct Server {
  int query_heads = 8, kv_heads = 2, ranks = 4;
  Tensor q = random_rows(query_heads, 1), k = random_rows(kv_heads, 2), v = random_rows(kv_heads, 3);
  Tensor lens = Tensor::from({2}, std::span<const std::int32_t>(std::array{25, 15}));

  /// What rank `rank` holds: its own query heads, and its KV heads or a copy of one.
  [[nodiscard]] PtDict part(int rank) const {
    const int queries = query_heads / ranks, keys = std::max(1, kv_heads / ranks), first = rank * kv_heads / ranks;
    const auto item = [](const char* name, Tensor tensor) { return PtItem{{std::string(name)}, {std::move(tensor)}}; };
    return {item("q", heads_of(q, rank * queries, queries)), item("k", heads_of(k, first, keys)),
            item("v", heads_of(v, first, keys)), item("seq_lens", lens)};
  }
};

void write_rank(const fs::path& dump, Layout layout, int rank, const PtDict& part) {
  const std::string name = std::to_string(rank);
  if (layout == Layout::kFiles) return write_pt(dump / ("layer_5_rank" + name + ".pt"), {part});
  const fs::path folder = dump / (layout == Layout::kBeside ? "layer_5_rank" + name : "layer_5/rank_" + name);
  for (const PtItem& item : part) write_pt(folder / *item.key.get_if<std::string>() / "1.pt", item.value);
}

void write_ranks(const fs::path& dump, Layout layout, const Server& server) {
  for (int rank = 0; rank < server.ranks; ++rank) write_rank(dump, layout, rank, server.part(rank));
}

std::vector<std::byte> bytes_of(const HeadsView& view) {
  return {view.data, view.data + view.num_tokens * view.bytes_per_token()};
}

void read_all(const fs::path& dump) {
  Status status;
  const auto source = open_dump(dump, {}, status);
  QkvChunk chunk;
  const auto stream = source->open(5);
  while (stream->next(chunk)) {
  }
}

}  // namespace

TEST_CASE("the ranks of a server become its model: every layout, own and copied key heads") {
  for (const Layout layout : {Layout::kBeside, Layout::kInside, Layout::kFiles}) {
    for (const int kv_heads : {1, 2, 4, 8}) {
      CAPTURE(kv_heads);
      const test::TemporaryFolder dump;
      const Server server{.kv_heads = kv_heads};
      write_ranks(dump.path(), layout, server);
      Status status;
      const auto source = open_dump(dump.path(), {}, status);
      CHECK(source->layer_ids() == std::vector<int>{5});
      CHECK(source->model().num_attention_heads == 8);
      CHECK(source->model().num_key_value_heads == kv_heads);
      CHECK(source->calibration().tokens == kTokens);
      const auto stream = source->open(5);
      QkvChunk chunk;
      for (int pass = 0; pass < 2; ++pass) {
        REQUIRE(stream->next(chunk));
        CHECK(bytes_of(chunk.view.q) == server.q.data);
        CHECK(bytes_of(chunk.view.k) == server.k.data);
        CHECK(bytes_of(chunk.view.v) == server.v.data);
        REQUIRE(chunk.sequences.size() == 2);
        CHECK(chunk.sequences[0].end == 25);
        CHECK_FALSE(stream->next(chunk));
        stream->rewind();
      }
      const auto fresh = source->open(5);
      for (const auto& [skipping, known] : {std::pair(fresh.get(), false), std::pair(stream.get(), true)}) {
        REQUIRE(skipping->skip(chunk));
        CHECK((chunk.view.k.data == nullptr) == known);  // which heads are copies
        CHECK(chunk.view.q.num_heads == 8);
        CHECK(chunk.view.k.num_heads == kv_heads);
        CHECK(chunk.view.v.num_heads == kv_heads);
        CHECK(chunk.view.k.num_tokens == kTokens);
        CHECK(chunk.sequences.size() == 2);
      }
    }
  }
}

TEST_CASE("limits cut the dumps of ranks as they cut others") {
  for (const Layout layout : {Layout::kBeside, Layout::kFiles}) {
    const test::TemporaryFolder dump;
    write_ranks(dump.path(), layout, {});
    Status status;
    const auto source = open_dump(dump.path(), {.max_tokens = 30}, status);
    QkvChunk chunk;
    REQUIRE(source->open(5)->next(chunk));
    CHECK(chunk.view.q.num_tokens == 30);
    CHECK(chunk.sequences.back().end == 30);
    CHECK(source->calibration().tokens == 30);
    CHECK_ERROR(open_dump(dump.path(), {.layers = {4}}, status), UsageError, "no layer 4");
  }
}

TEST_CASE("a missing rank, keys that are almost copies, and two dumps in one folder are refused") {
  const Server server;
  {
    const test::TemporaryFolder dump;
    for (const int rank : {0, 1, 3}) write_rank(dump.path(), Layout::kBeside, rank, server.part(rank));
    CHECK_ERROR(read_all(dump.path()), DataError, "rank 2 of 4 is missing");
  }
  const auto with_keys = [&](int rank, const Tensor& keys) {
    PtDict part = server.part(rank);
    part[1].value = {keys};
    return part;
  };
  Tensor almost = heads_of(server.k, 0, 1);
  almost.data[0] = static_cast<std::byte>(std::to_integer<int>(almost.data[0]) ^ 1);  // the last bit of one value
  {
    const test::TemporaryFolder dump;
    write_ranks(dump.path(), Layout::kBeside, server);
    write_rank(dump.path(), Layout::kBeside, 1, with_keys(1, almost));
    CHECK_ERROR(read_all(dump.path()), DataError, "ranks 0 and 1 hold almost the same keys");
  }
  {
    const test::TemporaryFolder dump;
    write_ranks(dump.path(), Layout::kBeside, server);
    write_rank(dump.path(), Layout::kBeside, 3, with_keys(3, almost));
    CHECK_ERROR(read_all(dump.path()), DataError, "rank 3 should hold a copy of what rank 2 holds");
  }
  const test::TemporaryFolder dump;
  write_ranks(dump.path(), Layout::kBeside, server);
  write_ranks(dump.path(), Layout::kInside, server);
  CHECK_ERROR(read_all(dump.path()), DataError, "more than one dump");
}

TEST_CASE("lengths of sequences whose sum overflows do not add up") {
  const test::TemporaryFolder dump;
  Server server;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  server.lens = Tensor(DType::kI64, {3});
  std::ranges::copy(std::array{kMost, kMost, kTokens + 2}, server.lens.values<std::int64_t>().begin());
  write_ranks(dump.path(), Layout::kFiles, server);
  CHECK_ERROR(read_all(dump.path()), DataError, "below 1 or do not add up to 40 tokens");
}

TEST_CASE("the size of values is told where it is not that of keys") {
  const test::TemporaryFolder dump;
  PtDict part = Server{.kv_heads = 1, .ranks = 1}.part(0);
  part[2].value = {Tensor(DType::kBF16, {kTokens, 1, kDim / 2})};
  write_rank(dump.path(), Layout::kFiles, 0, part);
  Status status;
  CHECK(open_dump(dump.path(), {}, status)->model().value_dim == kDim / 2);
}

TEST_CASE("a file of a rank that holds something else says what is missing") {
  const test::TemporaryFolder dump;
  write_pt(dump / "layer_0_rank0.pt", {PtDict{{{std::string("c_kv")}, {random_rows(1, 1)}}}});
  Status status;
  CHECK_ERROR(open_dump(dump.path(), {}, status), DataError, "no tensor \"q\"");
}

}  // namespace oscar
