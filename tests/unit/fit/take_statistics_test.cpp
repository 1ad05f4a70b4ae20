// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <map>

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
                                          .head_dim = 4,
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
Statistics take_twice(QkvSource& source, const FitOptions& options, const Statistics* first_pass, Backend& backend) {
  const test::TemporaryFolder folder;
  const PartialFolder kept(folder / "partial", Json::object(), PartialFolder::Earlier::kReplace);
  Status status;
  (void)take_statistics(source, options, first_pass, &kept, backend, status);
  std::filesystem::remove(kept.file_of(2));
  return take_statistics(source, options, first_pass, &kept, backend, status);
}

}  // namespace

TEST_CASE("both passes have the same bytes through files that are kept as in memory") {
  const auto backend = test::make_test_backend();
  test::MemorySource source = make_source();
  Status status;
  const FitOptions options{.recipe = "oscar", .key_objective = "fisher", .target = "any", .center = true};
  const FitOptions options_of_sst{.recipe = "oscar"};
  const Statistics fisher = take_statistics(source, options, nullptr, nullptr, *backend, status);
  const Statistics first = take_statistics(source, options_of_sst, nullptr, nullptr, *backend, status);
  const Statistics second = take_statistics(source, options_of_sst, &first, nullptr, *backend, status);
  CHECK(bytes_of(take_twice(source, options, nullptr, *backend)) == bytes_of(fisher));
  CHECK(bytes_of(take_twice(source, options_of_sst, nullptr, *backend)) == bytes_of(first));
  CHECK(bytes_of(take_twice(source, options_of_sst, &first, *backend)) == bytes_of(second));
}

}  // namespace oscar
