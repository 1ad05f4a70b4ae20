// SPDX-License-Identifier: MIT
// A fit by several processes that share the text: every recipe makes what it makes in one.
#include <doctest/doctest.h>

#include "fit/fit.hpp"
#include "moments/blocks.hpp"
#include "support/backend.hpp"
#include "support/shared_text.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

/// Three layers of 7 chunks, which are 3 blocks.
std::map<int, std::vector<test::MemoryChunk>> shared_layers() {
  std::map<int, std::vector<test::MemoryChunk>> layers;
  for (const int id : {1, 2, 5}) {
    for (int i = 0; i < 7; ++i) {
      auto chunk = test::synthetic_layer({.tokens = 1500,
                                          .query_heads = 2,
                                          .kv_heads = 1,
                                          .head_dim = 16,
                                          .seed = static_cast<std::uint64_t>(10 * id + i)});
      chunk.front().sequences = {{0, 700}, {700, 1500}};
      layers[id].push_back(std::move(chunk.front()));
    }
  }
  return layers;
}

RotationSet fit_together(int size, const FitOptions& options, Backend& backend) {
  const test::TemporaryFolder folder;
  test::Board board;
  std::vector<std::unique_ptr<PartialFolder>> partials;
  for (int rank = 0; rank < size; ++rank) {
    partials.push_back(
        std::make_unique<PartialFolder>(folder / "partial", Json::object(),
                                        rank == 0 ? PartialFolder::Earlier::kReplace : PartialFolder::Earlier::kLeave));
  }
  test::on_ranks(size, [&](int rank) {
    const auto layers = shared_layers();
    std::vector<std::unique_ptr<LayerStream>> streams;
    streams.push_back(std::make_unique<test::MemoryStream>(layers.begin()->second));
    const ChunkRange own = chunks_of_rank(streams, backend.work_shape(), rank, size);
    test::SharedSource source(layers, own, board.share(rank, size));
    Status status;
    fit_layers(source, source.layer_ids(), options, backend, status,
               {.kept = partials[static_cast<std::size_t>(rank)].get()});
  });
  CHECK(board.left() == 0);
  test::MemorySource source(shared_layers());
  Status status;
  return fit(source, options, backend, status, {.kept = partials.front().get()}).set;
}

}  // namespace

TEST_CASE("processes that share a text fit what one fits, by every recipe that fits layer by layer") {
  const auto backend = make_cpu_backend();
  const std::vector<FitOptions> all{
      {.recipe = "oscar"},
      {.recipe = "hadamard"},
      {.recipe = "lsq", .value_objective = "oto", .granularity = "head", .target = "any"},
      {.recipe = "stretch", .key_objective = "fisher", .target = "any", .center = true, .refine = true},
      {.recipe = "ktk_vtv"}};
  for (FitOptions options : all) {
    CAPTURE(options.recipe);
    options.refining.steps = 2;
    Status status;
    test::MemorySource source(shared_layers());
    const RotationSet expected = fit(source, options, *backend, status).set;
    for (const int size : {2, 3, 4}) {
      CAPTURE(size);
      const RotationSet set = fit_together(size, options, *backend);
      CHECK(set.recipe == expected.recipe);
      REQUIRE(set.layers.size() == expected.layers.size());
      for (std::size_t i = 0; i < set.layers.size(); ++i) {
        CHECK(set.layers[i].layer_id == expected.layers[i].layer_id);
        CHECK(set.layers[i].key.rotation.data == expected.layers[i].key.rotation.data);
        CHECK(set.layers[i].value.rotation.data == expected.layers[i].value.rotation.data);
        CHECK(set.layers[i].key.clip_ratio == expected.layers[i].key.clip_ratio);
        CHECK(set.layers[i].key.scores == expected.layers[i].key.scores);
        CHECK(set.layers[i].value.scores == expected.layers[i].value.scores);
      }
    }
  }
}

}  // namespace oscar
