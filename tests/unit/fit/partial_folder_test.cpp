// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <optional>
#include <utility>

#include "base/files.hpp"
#include "fit/take.hpp"
#include "moments/statistics.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

/// Keeps layer 0.
void keep_one_layer(const PartialFolder& folder) {
  Statistics statistics{.model = {}, .data = {{std::string(64, 'a'), 2, 1, {}}}, .windows = {}, .layers = {}};
  LayerStatistics layer{.layer_id = 0, .key_dim = 2, .value_dim = 2, .first_data = {0}};
  layer.first.sums[Moment::kQqt] = {MatrixStack::identity(2), {2}};
  statistics.layers = {layer};
  write_statistics(folder.file_of(0), statistics);
}

Json with_layers(const std::string& first, const std::string& second) {
  return {{"model", "m"}, {PartialFolder::kDataOfLayers, {{"0", first}, {"7", second}}}};
}

}  // namespace

TEST_CASE("of a dump that has changed, layers that are taken already must be the same, others need not") {
  const test::TemporaryFolder folder;
  const fs::path own = folder / "s.partial";
  Status status;
  keep_one_layer(PartialFolder(own, with_layers("a", "b"), status));  // layer 0
  CHECK(PartialFolder(own, with_layers("a", "mended"), status).has(0));
  CHECK_ERROR(PartialFolder(own, with_layers("other", "mended"), status), DataError,
              "layer 0 is taken already, of other data than the dump has now");
  Json another = with_layers("a", "b");
  another["model"] = "n";
  CHECK_ERROR(PartialFolder(own, another, status), DataError, "is of another: model differ");
}

TEST_CASE("a fit that was killed before it kept anything is begun anew, and what others put there stays") {
  const test::TemporaryFolder folder;
  Status status;
  const fs::path own = folder / "s.partial";
  fs::create_directories(own);
  write_file(sibling(own / "fit.json", "part"), "{");
  PartialFolder(own, with_layers("a", "b"), status).remove();
  CHECK_FALSE(fs::exists(own));
  fs::create_directories(own);
  write_file(own / "layer_0.safetensors", "mine");
  CHECK_ERROR(PartialFolder(own, with_layers("a", "b"), status), DataError, "not of an earlier fit");
  CHECK(read_text(own / "layer_0.safetensors") == "mine");
}

TEST_CASE("what a folder of kept layers does not hold itself stays when it is done") {
  const test::TemporaryFolder folder;
  const fs::path own = folder / "s.partial";
  Status status;
  std::optional<PartialFolder> partial(std::in_place, own, with_layers("a", "b"), status);
  CHECK_ERROR(PartialFolder(own, with_layers("a", "b"), status), UsageError, "another process is writing");
  keep_one_layer(*partial);
  write_file(own / "hidden_2.safetensors", "");
  write_file(own / ".layer_1.safetensors.part.7", "");
  write_file(own / "mine.txt", "dear");
  partial->remove();
  CHECK(list_files(own) == std::vector<fs::path>{"mine.txt"});
  fs::remove(own / "mine.txt");
  partial->remove();
  CHECK_FALSE(fs::exists(own));
}

}  // namespace oscar
