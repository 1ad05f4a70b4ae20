// SPDX-License-Identifier: MIT
#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "base/files.hpp"
#include "measure/kv_method.hpp"
#include "set/manifest.hpp"
#include "set/set_folder.hpp"
#include "support/support.hpp"
#include "tensor/safetensors.hpp"
#include "unit/kernels/gaussian.hpp"

namespace oscar {
namespace {

constexpr int kHeads = 2, kDim = 16;

MatrixStack random_matrices(unsigned seed) {
  MatrixStack stack(kHeads, kDim);
  const std::vector<float> values = test::gaussian_floats(stack.data.size(), seed);
  stack.data.assign(values.begin(), values.end());
  return stack;
}

CodedSide random_side(unsigned seed, bool has_mean) {
  CodedSide side;
  side.transform.rotation = random_matrices(seed);
  if (has_mean) side.transform.mean.assign(kHeads * kDim, 0.25);
  for (int head = 0; head < kHeads; ++head) {
    CodedFormat format{std::vector<int>(kDim, 4), std::vector<float>(kDim, 0.5F), std::vector<float>(kDim, 1.5F)};
    for (int i = 8; i < kDim; ++i) format.levels[i] = 1 + head, format.step[i] = static_cast<float>(head);
    side.formats.push_back(format);
  }
  return side;
}

/// Keys before RoPE, whose matrices have entries on pairs alone: coordinates 2 p and 2 p + 1 are of pair p.
CodedSide side_of_pairs(unsigned seed) {
  CodedSide side = random_side(seed, true);
  side.rotary = plain_rotary(10000, kDim);
  for (std::size_t at = 0; at < side.transform.rotation.data.size(); ++at) {
    const std::size_t row = at / kDim % kDim, column = at % kDim;
    if (row % (kDim / 2) != column / 2) side.transform.rotation.data[at] = 0;
  }
  return side;
}

CodedPart small_set() {
  CodedPart set;
  set.model.id = "small", set.model.num_layers = 4;
  set.calibration = {std::string(64, '0'), 1000, 2, {}};
  set.windows = {4, 16}, set.scope = "head";
  set.recipe = {{"name", "coded"}};
  set.layers.push_back({3, random_side(1, true), random_side(5, false)});
  return set;
}

/// Reading undoes writing, W R^T = I.
void check_read_side(const Transform& found) {
  REQUIRE(found.read_rotation.count == kHeads);
  for (int head = 0; head < kHeads; ++head) {
    for (std::size_t i = 0; i < kDim; ++i) {
      for (std::size_t j = 0; j < kDim; ++j) {
        double sum = 0;
        for (std::size_t c = 0; c < kDim; ++c)
          sum += found.rotation[head][i * kDim + c] * found.read_rotation[head][j * kDim + c];
        CHECK(sum == doctest::Approx(i == j ? 1 : 0).scale(1).epsilon(1e-4));
      }
    }
  }
}

/// Writes the tensors of a set's file again, changed, with a manifest that lists the new file.
void change_tensors(const std::filesystem::path& folder, const std::function<void(std::string&, Tensor&)>& change) {
  const std::filesystem::path path = folder / "coded.safetensors";
  std::vector<std::pair<std::string, Tensor>> tensors;
  {
    const SafetensorsFile file(path);
    for (const auto& [name, tensor] : file.tensors()) tensors.emplace_back(name, tensor.copy());
  }
  for (auto& [name, tensor] : tensors) change(name, tensor);
  write_safetensors(path, tensors, {});
  Json manifest = read_json(folder / "manifest.json");
  manifest["files"] = list_with_hashes(folder, {"coded.safetensors"});
  write_json(folder / "manifest.json", manifest);
}

}  // namespace

TEST_CASE("keys before RoPE are read as they were written, with fewer bytes") {
  const test::TemporaryFolder folder;
  CodedPart set = small_set();
  write_set(folder / "whole", set_of(set), {}, false);
  set.layers[0].key = side_of_pairs(1);
  set.layers[0].key.transform.mean.assign(kHeads * kDim, 0);  // which is a mean all the same
  set.model.num_layers = 5, set.layers.push_back({4, side_of_pairs(9), random_side(13, false)});
  write_set(folder / "set", set_of(set), {}, false);
  const Set read = read_set(folder / "set");
  for (std::size_t i = 0; i < 2; ++i) {
    const CodedSide &found = read.coded->layers[i].key, &expected = set.layers[i].key;
    CHECK(found.rotary == expected.rotary);
    CHECK(found.transform.rotation.data == expected.transform.rotation.data);
    check_read_side(found.transform);
    CHECK(found.transform.mean == expected.transform.mean);
  }
  CHECK(read.manifest["parts"]["coded"]["rotary"].size() == 1);
  CHECK(part_of_reader(read, reader_from_name("vllm", "")) == "coded");
  CHECK(part_of_reader(read, reader_from_name("transformers", "")) == "coded");
  const std::map<std::string, std::function<void(Tensor&)>> wrong{
      {"layers.4.key.pair", [](Tensor& x) { std::memset(x.data.data(), 0, x.data.size()); }},
      {"layers.4.key.write", [](Tensor& x) {
         x.shape = {kHeads, kDim * 2, 1};
       }}};
  for (const auto& [tensor, change] : wrong) {
    write_set(folder / "set", set_of(set), {}, true);
    change_tensors(folder / "set", [&](std::string& name, Tensor& x) {
      if (name == tensor) change(x);
    });
    CHECK_THROWS_AS((void)read_set(folder / "set"), DataError);
  }
}

TEST_CASE("a coded set is read as it was written") {
  const test::TemporaryFolder folder;
  const CodedPart set = small_set();
  write_set(folder / "set", set_of(set), {}, false);
  const CodedPart read = read_set(folder / "set").coded.value();
  CHECK(read.model == set.model);
  CHECK(read.calibration == set.calibration);
  CHECK(read.windows == set.windows);
  CHECK(read.scope == "head");
  CHECK(read.recipe == set.recipe);
  REQUIRE(read.layers.size() == 1);
  CHECK(read.layers[0].layer_id == 3);
  for (const auto side : {&CodedLayer::key, &CodedLayer::value}) {
    const CodedSide &expected = set.layers[0].*side, &got = read.layers[0].*side;
    CHECK(got.transform.rotation.data == expected.transform.rotation.data);
    check_read_side(got.transform);
    CHECK(got.transform.mean == expected.transform.mean);
    CHECK(got.formats == expected.formats);
  }
}

TEST_CASE("keys that are not centred have no mean after reading either") {
  const test::TemporaryFolder folder;
  CodedPart set = small_set();
  set.layers[0].key.transform.mean.clear();
  write_set(folder / "set", set_of(set), {}, false);
  CHECK(read_set(folder / "set").coded.value().layers[0].key.transform.mean.empty());
}

TEST_CASE("bits count codes and scales of all heads") {
  // Head 0 stores 8 channels of 2 bits, head 1 these and 8 of 1 bit; each row has two bytes of scales.
  const CodedPart set = small_set();
  CHECK(bits_of(set.layers[0].key) == (16 + 16 + 24 + 16) / 32.0);
  CHECK(bits_of(set) == bits_of(set.layers[0].key));
  const KvMethod method = method_of(set, set.windows);
  CHECK(bits_per_element(method, 1 << 20).fp16_params == bits_of(set));
  CHECK(bits_per_element(method, 1 << 20).fp32_params == bits_of(set));
}

TEST_CASE("a coded set that is damaged is refused by the tensor's name") {
  const test::TemporaryFolder folder;
  const auto refused = [&](const std::string& what, const std::function<void(std::string&, Tensor&)>& change) {
    write_set(folder / "set", set_of(small_set()), {}, true);
    change_tensors(folder / "set", change);
    CHECK_ERROR((void)read_set(folder / "set").coded.value(), DataError, what);
  };
  refused("layers.3.key.mean", [](std::string& name, Tensor&) { name += name == "layers.3.key.mean" ? "s" : ""; });
  refused("layers.3.value.write has values that are not finite", [](const std::string& name, Tensor& tensor) {
    if (name == "layers.3.value.write") tensor.values<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  });
  refused("layers.3.value.write has a matrix without an inverse", [](const std::string& name, Tensor& tensor) {
    if (name == "layers.3.value.write") std::ranges::fill(tensor.values<float>(), 0.0F);
  });
  refused("layers.3.key.step has the shape [2, 8]", [](const std::string& name, Tensor& tensor) {
    if (name == "layers.3.key.step") tensor = Tensor(DType::kF32, {2, 8});
  });
  refused("the format of KV head 1 cannot be packed", [](const std::string& name, Tensor& tensor) {
    if (name == "layers.3.value.levels") tensor.values<std::int32_t>()[kDim] = 3;
  });
  refused("layers.3.value.write has the shape [2, 16]", [](const std::string& name, Tensor& tensor) {
    if (name == "layers.3.value.write") tensor = Tensor(DType::kF32, {2, 16});
  });
}

TEST_CASE("a file of the coded cache with a tensor more is refused") {
  const test::TemporaryFolder folder;
  CodedPart part = small_set();
  write_coded_file(folder / "coded.safetensors", part);
  part.layers.clear();
  CHECK_ERROR(fill_from_coded_file(folder / "coded.safetensors", part), DataError, "has tensors beside those");
}

}  // namespace oscar
