// SPDX-License-Identifier: MIT
#include "moments/statistics.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/json.hpp"
#include "support/support.hpp"
#include "tensor/safetensors.hpp"

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

/// Sums over two rows of three channels, (1, 2, 3) and (2, -1, 1), of one head.
MomentSums of_two_rows() {
  MomentSums out{MatrixStack(1, 3), {2}};
  out.sums.data = {5, 0, 5, 0, 5, 5, 5, 5, 10};
  return out;
}

Statistics statistics() {
  Statistics out;
  out.model = {.id = "test/model", .num_attention_heads = 1, .num_key_value_heads = 1, .head_dim = 3};
  out.data = {{.data_sha256 = std::string(64, '1'), .tokens = 10, .sequences = 1, .blocks = {}}};
  LayerStatistics layer{.layer_id = 4, .key_dim = 3, .value_dim = 3, .first_data = {0}};
  layer.first.sums[Moment::kQqt] = of_two_rows();
  layer.first.sums[Moment::kKtk] = of_two_rows();
  layer.first.keys = KeySums{{3, 1, 4}, 2};
  layer.first.fisher = FisherSums(1, 3);
  layer.first.fisher->key.data = of_two_rows().sums.data;
  layer.first.fisher->key_sum = {1, 1, 1};
  layer.first.fisher->weight = {1};
  out.layers.push_back(std::move(layer));
  return out;
}

/// Writes the file again without checksums, after `change`.
void strip_checksums(const fs::path& path,
                     const std::function<void(std::vector<std::pair<std::string, Tensor>>&)>& change) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, std::string> metadata;
  {
    const SafetensorsFile file(path);
    for (const auto& [name, tensor] : file.tensors()) tensors.emplace_back(name, tensor.copy());
    metadata = file.metadata();
  }
  CHECK(metadata.erase("sha256") == 1);
  change(tensors);
  write_safetensors(path, tensors, metadata);
}

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

TEST_CASE("the parts of data have one hash as a whole, whichever were added up first") {
  const CalibrationData a{std::string(64, 'a'), 1, 1, {"1"}}, b{std::string(64, 'b'), 2, 1, {"2"}},
      c{std::string(64, 'c'), 3, 1, {"3"}};
  CHECK(calibration_of({a, c, b}) == calibration_of({a, b, c}));
  CHECK(calibration_of({c}) == c);
}

TEST_CASE("layers of one part may lie in several files") {
  const Folder folder;
  const Statistics sum =
      read_statistics({folder.write("low", part('1', {0, 1}, 1)), folder.write("high", part('1', {2}, 2))});
  CHECK(sum.data.size() == 1);
  REQUIRE(sum.layers.size() == 3);
  CHECK(sum.layers[2].first.sums.at(Moment::kQqt).total == std::vector<double>{2});
}

TEST_CASE("value moments by attention scores are of one part: a sum of parts has none") {
  const Folder folder;
  Statistics one = part('1', {0}, 1), two = part('2', {0}, 1);
  one.layers[0].sst = moments(5), two.layers[0].sst = moments(5);
  const fs::path a = folder.write("a", one);
  CHECK(read_statistics({a}).layers[0].sst->total == std::vector<double>{5});
  CHECK_FALSE(read_statistics({a, folder.write("b", two)}).layers[0].sst);
}

TEST_CASE("statistics that do not belong together are refused, with both names") {
  const Folder folder;
  const fs::path a = folder.write("a", part('1', {0}, 1));
  const auto refused = [&](const char* what, const auto& change) {
    Statistics b = part('2', {0}, 1);
    change(b);
    CHECK_ERROR((void)read_statistics({a, folder.write("b", b)}), DataError, what);
  };
  const auto costly = [&](char name, int heads) {
    Statistics only_costs = part(name, {0}, 1);
    only_costs.model.num_key_value_heads = 0;
    only_costs.layers[0].first = {};
    only_costs.layers[0].cost = ErrorCost{MatrixStack(heads, 2), MatrixStack(heads, 2)};
    return folder.write(std::string(1, name), only_costs);
  };
  CHECK_ERROR((void)read_statistics({costly('3', 2), costly('4', 1)}), DataError, "another number of heads");
  refused("different models (\"test/model\", \"other\")", [](Statistics& s) { s.model.id = "other"; });
  refused("different revisions", [](Statistics& s) { s.model.revision = "abc"; });
  refused("different revisions", [](Statistics& s) { s.model.config_sha256 = std::string(64, 'c'); });
  refused("different shape", [](Statistics& s) { s.model.num_layers = 5; });
  refused("[recipe][keys]", [](Statistics& s) { s.recipe = {{"sample_rows", 0}, {"keys", 7}}; });
  refused("different windows", [](Statistics& s) { s.windows.sink = 1; });
  refused("sums of fisher keys, elsewhere of fisher keys qqt", [](Statistics& s) { s.layers[0].first.sums.clear(); });
  refused("the same data twice", [](Statistics& s) { s.data[0].data_sha256 = std::string(64, '1'); });
  const auto read = [](Statistics s, const std::string& texts) {
    for (const char text : texts) s.data[0].blocks.push_back(std::string(CalibrationData::kBlockDigits, text));
    return s;
  };
  folder.write("a", read(part('1', {0}, 1), "1234"));
  refused("the same texts twice", [&](Statistics& s) { s = read(s, "04"); });
  CHECK(read_statistics({a, folder.write("b", read(part('2', {0}, 1), "0456"))}).data.size() == 2);  // one in four
  folder.write("a", read(part('1', {0}, 1), "113"));  // beginnings that texts share
  CHECK(read_statistics({a, folder.write("b", read(part('2', {0}, 1), "114"))}).data.size() == 2);
  refused("sums of different numbers of heads", [](Statistics& s) { s.layers[0].first.fisher = FisherSums(2, 2); });
  refused("not 2 float64 values", [](Statistics& s) { s.layers[0].first.keys->sums = {1}; });
  refused("layers are not in ascending order", [](Statistics& s) { s = part('2', {3, 0}, 1); });
  refused("the model's is 2", [](Statistics& s) { s.layers[0].value_dim = 4; });
  refused("data that it does not list", [](Statistics& s) { s.layers[0].first_data = {7}; });
}

TEST_CASE("what is no sum over rows is refused, with and without checksums") {
  const test::TemporaryFolder folder;
  const fs::path path = folder / "s";
  const auto refused = [&](const char* what, const std::function<void(LayerStatistics&)>& change) {
    Statistics changed = statistics();
    change(changed.layers.front());
    write_statistics(path, changed);
    CHECK_ERROR((void)read_statistics({path}), DataError, what);
    strip_checksums(path, [](auto&) {});
    CHECK_ERROR((void)read_statistics({path}), DataError, what);
  };
  const auto qqt = [](LayerStatistics& layer) -> MomentSums& { return layer.first.sums.at(Moment::kQqt); };
  refused("\"layer_4.qqt.sums\" has values that are not finite", [&](auto& l) { qqt(l).sums.data[1] = NAN; });
  refused("\"layer_4.qqt.sums\" has values that are not finite", [&](auto& l) { qqt(l).sums.data[0] = INFINITY; });
  refused("\"layer_4.qqt.sums\" of head 0 has negative sums of squares", [&](auto& l) {
    for (double& value : qqt(l).sums.data) value = -value;
  });
  refused("it is not symmetric", [&](auto& l) { qqt(l).sums.data[1] = 1; });
  refused("larger beside its diagonal", [&](auto& l) { qqt(l).sums.data[1] = qqt(l).sums.data[3] = 7; });
  // Each pair of channels could be that of rows, all three together could not.
  refused("\"layer_4.qqt.sums\" of head 0 has a negative eigenvalue",
          [&](auto& l) { qqt(l).sums.data = {1, -.9, -.9, -.9, 1, -.9, -.9, -.9, 1}; });
  refused("\"layer_4.qqt.total\" is 0", [&](auto& l) { qqt(l).total = {0}; });
  refused("\"layer_4.qqt.total\" is -2", [&](auto& l) { qqt(l).total = {-2}; });
  refused("give at most 10", [&](auto& l) { qqt(l).total = {11}; });
  refused("\"layer_4.keys.total\" is 0", [&](auto& l) { l.first.keys->tokens = 0; });
  refused("\"layer_4.keys.sums\" is larger than the second moments allow", [&](auto& l) { l.first.keys->sums[0] = 4; });
  refused("\"layer_4.fisher.weight\" is -1", [&](auto& l) { l.first.fisher->weight = {-1}; });
  refused("\"layer_4.fisher.key_sum\" is larger", [&](auto& l) { l.first.fisher->key_sum[0] = 3; });
  refused("are of 2 heads, the model has 1", [&](auto& l) {
    l.first.sums = {{Moment::kVtv, {MatrixStack(2, 3), {2, 2}}}};
    l.first.keys.reset(), l.first.fisher.reset();
  });
}

TEST_CASE("sums that the manifest does not list are refused") {
  const test::TemporaryFolder folder;
  write_statistics(folder / "s", statistics());
  strip_checksums(folder / "s", [](auto& tensors) {
    tensors.emplace_back("layer_5.qqt.total", Tensor::from({1}, std::vector<double>{1}));
  });
  CHECK_ERROR((void)read_statistics({folder / "s"}), DataError, "that the manifest does not list");
}

}  // namespace oscar
