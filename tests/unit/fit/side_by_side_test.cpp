// SPDX-License-Identifier: MIT
// Layers read by several threads, as on a GPU.
#include "support/side_by_side.hpp"

#include <doctest/doctest.h>

#include <limits>

#include "support/backend.hpp"
#include "support/fit_source.hpp"
#include "support/support.hpp"
#include "support/synthetic.hpp"

namespace oscar {
namespace {

std::map<int, std::vector<test::MemoryChunk>> five_layers() {
  std::map<int, std::vector<test::MemoryChunk>> layers;
  for (const int id : {1, 2, 5, 6, 9}) layers[id] = test::synthetic_layer({.seed = static_cast<std::uint64_t>(id)});
  return layers;
}

test::SideBySide side_by_side() { return {make_cpu_backend(), {.concurrent_layers = 3, .layers_per_batch = 2}}; }

}  // namespace

TEST_CASE("layers side by side become what they become one by one") {
  FitOptions options;
  options.recipe = "oscar";
  Status status;
  test::MemorySource source(five_layers()), again(five_layers());
  test::SideBySide backend = side_by_side();
  const RotationPart expected = test::fit_rotations_of(source, options, *make_cpu_backend(), status);
  const RotationPart set = test::fit_rotations_of(again, options, backend, status);
  CHECK(set.recipe == expected.recipe);
  REQUIRE(set.layers.size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    CHECK(set.layers[i].layer_id == expected.layers[i].layer_id);
    CHECK(set.layers[i].key.rotation.data == expected.layers[i].key.rotation.data);
    CHECK(set.layers[i].value.rotation.data == expected.layers[i].value.rotation.data);
    CHECK(set.layers[i].key.clip_ratio == expected.layers[i].key.clip_ratio);
    CHECK(set.layers[i].value.clip_ratio == expected.layers[i].value.clip_ratio);
  }
}

TEST_CASE("what goes wrong in one of several layers comes out") {
  for (const auto& [rows, name] : {std::pair{&test::MemoryChunk::k, "k"}, {&test::MemoryChunk::v, "v"}}) {
    auto layers = five_layers();
    Tensor& spoilt = layers[6][0].*rows;
    spoilt = convert(spoilt, DType::kF32);
    spoilt.values<float>()[33] = std::numeric_limits<float>::quiet_NaN();
    test::MemorySource source(std::move(layers));
    test::SideBySide backend = side_by_side();
    Status status;
    CHECK_ERROR(test::fit_source(source, {.recipe = "oscar"}, backend, status), DataError,
                std::string(name) + " has NaN or Inf");
  }
}

TEST_CASE("windows longer than a sequence's usual sample still leave history to fit clip ratios on") {
  FitOptions options;
  options.recipe = "oscar", options.windows = {64, 2000};
  test::MemorySource source({{0, test::synthetic_layer({.tokens = 2700})}});
  Status status;
  const RotationPart set = test::fit_rotations_of(source, options, *make_cpu_backend(), status);
  CHECK(set.recipe["clip_sample"].get<std::string>().find("2448 keys in 1 sequence,") == 0);
}

}  // namespace oscar
