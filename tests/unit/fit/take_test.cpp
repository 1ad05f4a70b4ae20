// SPDX-License-Identifier: MIT
#include "fit/take.hpp"

#include <doctest/doctest.h>

#include <map>
#include <optional>

#include "base/files.hpp"
#include "base/json.hpp"
#include "fit/fit.hpp"
#include "support/backend.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

/// Three layers of 8 chunks, which are 3 blocks.
test::MemorySource make_source() {
  std::map<int, std::vector<test::MemoryChunk>> layers;
  for (const int id : {0, 2, 5}) {
    for (int i = 0; i < 8; ++i) {
      auto chunk = test::synthetic_layer({.tokens = 1500,
                                          .query_heads = 2,
                                          .kv_heads = 1,
                                          .head_dim = 8,
                                          .seed = static_cast<std::uint64_t>(10 * id + i)});
      chunk.front().sequences = {{0, 400}, {400, 1500}};
      layers[id].push_back(std::move(chunk.front()));
    }
  }
  return test::MemorySource(std::move(layers));
}

std::string bytes_of(const Statistics& statistics) {
  const test::TemporaryFolder folder;
  write_statistics(folder / "all", statistics);
  return read_text(folder / "all");
}

/// Kept in a folder, from which one layer is lost.
Statistics take_twice(QkvSource& source, const FitOptions& options, Backend& backend) {
  const test::TemporaryFolder folder;
  Status status;
  std::optional<PartialFolder> kept;
  const OpenPartial open = [&](const Json& record) {
    kept.emplace(folder / "partial", record, status);
    return &*kept;
  };
  (void)take({source}, options, open, backend, status);
  std::filesystem::remove(kept->file_of(2));
  return take({source}, options, open, backend, status);
}

}  // namespace

TEST_CASE("what is taken has the same bytes through files that are kept as in memory") {
  const auto backend = test::make_test_backend();
  test::MemorySource source = make_source();
  Status status;
  for (const char* const recipe : {"auto", "coded", "oscar", "hadamard"}) {
    CAPTURE(recipe);
    const FitOptions options{.recipe = recipe, .windows = {16, 32}};
    const Statistics taken = take({source}, options, {}, *backend, status);
    CHECK(bytes_of(take_twice(source, options, *backend)) == bytes_of(taken));
    // And once more through the file of the whole.
    const test::TemporaryFolder folder;
    write_statistics(folder / "all", taken);
    CHECK(bytes_of(read_statistics({folder / "all"})) == bytes_of(taken));
  }
}

TEST_CASE("sums alone, as servers keep them, fit rotations, and ask for rows where the coded cache is wanted") {
  test::HeardStatus notices;
  const auto backend = test::make_test_backend();
  test::MemorySource source = make_source();
  FitOptions options{.recipe = "oscar", .windows = {16, 32}};
  Statistics kept = take({source}, options, {}, *backend, notices);
  kept.recipe = Json::object(), kept.clip.reset(), kept.windows = {};
  for (LayerStatistics& layer : kept.layers) layer.key_rows.clear(), layer.value_rows.clear(), layer.sample.clear();
  options.recipe = "auto";
  const Set set = fit(kept, options, *backend, notices);
  CHECK_FALSE(set.coded);
  CHECK(parts_of_readers(set).at("sglang") == kRotationsName);
  CHECK(set.rotations.at(kRotationsName).windows == Windows{16, 32});
  CHECK(set.rotations.at(kRotationsName).key_clip_scalar == 0.96);
  CHECK(set.rotations.at(kRotationsName).recipe["clip"] == "0.96,0.92");
  for (const char* const text : {"part coded is left out: it needs rows",
                                 "part with_means is left out: no sums of fisher", "the published constants"}) {
    CHECK_MESSAGE(notices.text.find(text) != std::string::npos, notices.text);
  }
  options.readers = {"vllm"};
  CHECK_ERROR((void)fit(kept, options, *backend, notices), DataError, "part coded cannot be fitted: it needs rows");
  options = {.recipe = "stretch", .windows = {16, 32}};
  CHECK_ERROR((void)fit(kept, options, *backend, notices), DataError, "no sums of ktk in layer 0");
  options.key_objective = "fisher";
  CHECK_ERROR((void)fit(kept, options, *backend, notices), DataError, "no sums of fisher in layer 0");
  options = {.recipe = "oscar", .windows = {16, 32}};
  kept.layers[1].sst.reset();
  CHECK_ERROR((void)fit(kept, options, *backend, notices), DataError, "no rows are kept to take them of");
}

TEST_CASE("statistics are fitted with the windows that they were taken with") {
  const auto backend = test::make_test_backend();
  test::MemorySource source = make_source();
  Status status;
  const Statistics taken = take({source}, {.recipe = "oscar", .windows = {16, 32}}, {}, *backend, status);
  CHECK_ERROR((void)fit(taken, {.recipe = "oscar"}, *backend, status), UsageError, "windows of 16 and 32 tokens");
}

}  // namespace oscar
