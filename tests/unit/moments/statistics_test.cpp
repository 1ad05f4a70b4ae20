// SPDX-License-Identifier: MIT
#include "moments/statistics.hpp"

#include <doctest/doctest.h>

#include "base/errors.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// Sums of one head of two channels, all of whose values are `value`.
MomentSums moments(double value) {
  MomentSums out{MatrixStack(1, 2), {value}};
  out.sums.data.assign(4, value);
  return out;
}

/// One part of the data, named by a digit, over some layers.
Statistics part(char name, const std::vector<int>& layers, double value) {
  Statistics out;
  out.model = {.id = "test/model", .num_attention_heads = 1, .num_key_value_heads = 1, .head_dim = 2};
  out.data = {{.data_sha256 = std::string(64, name), .tokens = 10, .sequences = 1, .blocks = {}}};
  for (const int id : layers) {
    LayerStatistics layer{.layer_id = id, .key_dim = 2, .value_dim = 2, .first_data = {0}};
    layer.first.sums[Moment::kQqt] = moments(value);
    layer.first.keys = KeySums{{value, value}, value};
    layer.first.fisher = FisherSums(1, 2);
    layer.first.fisher->weight = {value};
    out.layers.push_back(std::move(layer));
  }
  return out;
}

struct Folder : test::TemporaryFolder {
  fs::path write(const std::string& name, const Statistics& statistics) const {
    write_statistics(path() / name, statistics);
    return path() / name;
  }
};

}  // namespace

TEST_CASE("statistics of parts add up, in any order of files") {
  const Folder folder;
  const fs::path a = folder.write("a", part('1', {0, 3}, 0.1)), b = folder.write("b", part('2', {0, 3}, 0.2)),
                 c = folder.write("c", part('3', {0, 3}, 0.3));
  const Statistics sum = read_statistics({a, b, c}), other = read_statistics({c, a, b});
  REQUIRE(sum.layers.size() == 2);
  CHECK(sum.data.size() == 3);
  CHECK(sum.layers[1].layer_id == 3);
  CHECK(sum.layers[1].first_data == std::vector<std::size_t>{0, 1, 2});
  CHECK(sum.layers[1].first.sums.at(Moment::kQqt).total == std::vector<double>{0.1 + 0.2 + 0.3});
  CHECK(sum.layers[1].first.sums.at(Moment::kQqt).sums.data == other.layers[1].first.sums.at(Moment::kQqt).sums.data);
  CHECK(sum.layers[0].first.keys->tokens == 0.1 + 0.2 + 0.3);
  CHECK(sum.layers[0].first.fisher->weight == std::vector<double>{0.1 + 0.2 + 0.3});
}

TEST_CASE("layers of one part may lie in several files") {
  const Folder folder;
  const Statistics sum =
      read_statistics({folder.write("low", part('1', {0, 1}, 1)), folder.write("high", part('1', {2}, 2))});
  CHECK(sum.data.size() == 1);
  REQUIRE(sum.layers.size() == 3);
  CHECK(sum.layers[2].first.sums.at(Moment::kQqt).total == std::vector<double>{2});
}

TEST_CASE("a second pass belongs to the query moments it names") {
  const Folder folder;
  const fs::path first = folder.write("first", part('1', {0}, 1));
  Statistics second = part('1', {0}, 0);
  second.layers[0].first = {};
  second.layers[0].first_data.clear();
  second.layers[0].sst = moments(5), second.layers[0].sst_data = {0};
  second.query_moments_sha256 = query_moments_sha256(read_statistics({first}));
  const Statistics both = read_statistics({folder.write("second", second), first});
  CHECK(both.layers[0].first.sums.contains(Moment::kQqt));
  CHECK(both.layers[0].sst->total == std::vector<double>{5});
  CHECK(both.query_moments_sha256 == query_moments_sha256(both));
  second.data[0].data_sha256 = std::string(64, '2');
  second.query_moments_sha256 = std::string(64, 'e');
  CHECK_ERROR((void)read_statistics({folder.path() / "second", folder.write("odd", second)}), DataError,
              "different query moments");
}

TEST_CASE("statistics that do not belong together are refused, with both names") {
  const Folder folder;
  const fs::path a = folder.write("a", part('1', {0}, 1));
  const auto refused = [&](const char* what, const auto& change) {
    Statistics b = part('2', {0}, 1);
    change(b);
    CHECK_ERROR((void)read_statistics({a, folder.write("b", b)}), DataError, what);
  };
  refused("different models (\"test/model\", \"other\")", [](Statistics& s) { s.model.id = "other"; });
  refused("different revisions", [](Statistics& s) { s.model.revision = "abc"; });
  refused("different revisions", [](Statistics& s) { s.model.config_sha256 = std::string(64, 'c'); });
  refused("different shape", [](Statistics& s) { s.model.num_layers = 5; });
  refused("different windows", [](Statistics& s) { s.windows.sink = 1; });
  refused("sums of fisher keys, elsewhere of fisher keys qqt", [](Statistics& s) { s.layers[0].first.sums.clear(); });
  refused("the same data twice", [](Statistics& s) { s.data[0].data_sha256 = std::string(64, '1'); });
  refused("sums of different numbers of heads", [](Statistics& s) { s.layers[0].first.fisher = FisherSums(2, 2); });
  refused("not 2 float64 values", [](Statistics& s) { s.layers[0].first.keys->sums = {1}; });
  refused("layers are not in ascending order", [](Statistics& s) { s = part('2', {3, 0}, 1); });
  refused("the model's is 2", [](Statistics& s) { s.layers[0].value_dim = 4; });
  CHECK_ERROR((void)read_statistics({a, folder.write("c",
                                                     [] {
                                                       Statistics s = part('3', {0}, 1);
                                                       s.layers[0].first_data = {7};
                                                       return s;
                                                     }())}),
              DataError, "data that it does not list");
}

}  // namespace oscar
