// SPDX-License-Identifier: MIT
#include "fit/take_statistics.hpp"

#include <doctest/doctest.h>

#include <map>

#include "base/files.hpp"
#include "base/json.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

/// Three layers of 8 chunks, which are 3 blocks, or 4 where `more`.
template <class Source = test::MemorySource>
Source make_source(bool more = false) {
  std::map<int, std::vector<test::MemoryChunk>> layers;
  for (const int id : {0, 2, 5}) {
    for (int i = 0; i < (more && id == 5 ? 11 : 8); ++i) {
      auto chunk = test::synthetic_layer({.tokens = 1500,
                                          .query_heads = 2,
                                          .kv_heads = 1,
                                          .head_dim = 4,
                                          .seed = static_cast<std::uint64_t>(10 * id + i)});
      chunk.front().sequences = {{0, 400}, {400, 1500}};
      layers[id].push_back(std::move(chunk.front()));
    }
  }
  return Source(std::move(layers));
}

std::string bytes_of(const Statistics& statistics) {
  const test::TemporaryFolder folder;
  write_statistics(folder / "all", statistics);
  return read_text(folder / "all");
}

/// As `size` processes take them, through files.
Statistics take_on(int size, test::MemorySource& source, const FitOptions& options, const Statistics* first_pass,
                   Backend& backend, std::int64_t blocks) {
  const test::TemporaryFolder folder;
  const PartialStatistics partial(folder / "partial", Json::object(), PartialFolder::Earlier::kReplace);
  Status status;
  StatisticsTaker taker(source, options, first_pass, backend, status);
  std::map<int, std::vector<std::filesystem::path>> pieces;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<LayerShare> shares = shares_of(source.layer_ids(), blocks, rank, size);
    std::vector<std::vector<std::filesystem::path>> files(shares.size());
    taker.take(shares, [&](std::size_t i, std::vector<LayerStatistics> sums) {
      for (std::size_t k = 0; k < sums.size(); ++k) {
        files[i].push_back(partial.file_of_piece(shares[i], k));
        write_statistics(files[i].back(), taker.alone(std::move(sums[k])));
      }
    });
    for (std::size_t i = 0; i < shares.size(); ++i) {
      auto& all = pieces[shares[i].layer_id];
      all.insert(all.end(), files[i].begin(), files[i].end());
    }
  }
  for (const auto& [id, files] : pieces) partial.join_pieces(files);
  return partial.join(source.layer_ids());
}

}  // namespace

TEST_CASE("shares are a run of all blocks each, with nothing left out and nothing twice") {
  const std::vector<int> layers{0, 2, 5};
  CHECK(shares_of(layers, 4, 0, 1) == std::vector<LayerShare>{{0, {}}, {2, {}}, {5, {}}});
  CHECK(shares_of(layers, 4, 1, 3) == std::vector<LayerShare>{{2, {}}});
  CHECK(shares_of(layers, 4, 0, 2) == std::vector<LayerShare>{{0, {}}, {2, {0, 2}}});
  CHECK(shares_of(layers, 4, 1, 2) == std::vector<LayerShare>{{2, {2, INT64_MAX}}, {5, {}}});
  CHECK(shares_of({}, 4, 1, 2).empty());
  for (int size = 1; size < 20; ++size) {
    std::int64_t all = 0;
    for (int rank = 0; rank < size; ++rank) {
      for (const LayerShare& share : shares_of(layers, 4, rank, size)) {
        all += std::min<std::int64_t>(share.blocks.last, 4) - share.blocks.first;
      }
    }
    CHECK(all == 12);
  }
}

TEST_CASE("both passes of any number of processes have the bytes of one's") {
  const auto backend = test::make_test_backend();
  for (const bool more : {false, true}) {
    auto source = make_source(more);
    Status status;
    const FitOptions options{.recipe = "oscar", .key_objective = "fisher", .target = "any", .center = true};
    const FitOptions options_of_sst{.recipe = "oscar"};
    const Statistics fisher = StatisticsTaker(source, options, nullptr, *backend, status).take_all();
    const Statistics first = StatisticsTaker(source, options_of_sst, nullptr, *backend, status).take_all();
    const Statistics second = StatisticsTaker(source, options_of_sst, &first, *backend, status).take_all();
    for (const int size : {2, 5, 9}) {
      CAPTURE(size);
      CHECK(bytes_of(take_on(size, source, options, nullptr, *backend, 3)) == bytes_of(fisher));
      CHECK(bytes_of(take_on(size, source, options_of_sst, nullptr, *backend, 3)) == bytes_of(first));
      CHECK(bytes_of(take_on(size, source, options_of_sst, &first, *backend, 3)) == bytes_of(second));
    }
  }
}

TEST_CASE("while blocks are counted nothing is read ahead, and then only the share's chunks") {
  const auto backend = test::make_test_backend();
  auto source = make_source<test::WatchedSource>();
  Status status;
  StatisticsTaker taker(source, {.recipe = "oscar"}, nullptr, *backend, status);
  taker.take(std::vector<LayerShare>{{2, {1, 2}}}, [](std::size_t, const std::vector<LayerStatistics>&) {});
  REQUIRE(source.openings.size() == 2);
  CHECK(source.openings[0].last == 0);
  CHECK(source.openings[0].layers == 0);
  CHECK(source.openings[1].first > 0);
  CHECK(source.openings[1].last > source.openings[1].first);
  CHECK(source.openings[1].last < 8);
  CHECK(source.openings[1].layers == 1);
}

}  // namespace oscar
