// SPDX-License-Identifier: MIT
#include "set/formats.hpp"

#include <doctest/doctest.h>

#include "base/files.hpp"
#include "set/serve_env.hpp"
#include "set/set_folder.hpp"
#include "support/support.hpp"
#include "tensor/pt.hpp"

namespace oscar {
namespace {

SideTransform side(double seed, int heads) {
  SideTransform out;
  out.rotation = MatrixStack(heads, 2);
  for (double& value : out.rotation.data) value = static_cast<float>(seed += 0.1);
  for (int i = 0; i < heads * 2; ++i) out.eigenvalues.push_back(0.5 * i + 1);
  out.covariance = out.rotation;
  out.clip_ratio = 0.94;
  out.scores["clip"] = {{"metric", "softmax_kl"}};
  return out;
}

RotationPart sample(int heads = 1) {
  RotationPart set;
  set.key_objective = "qqt_r_h_pbr";
  set.value_objective = "sst_r_h_pbr";
  set.layers = {{3, side(1, heads), side(2, heads)}, {7, side(3, heads), side(4, heads)}};
  set.model = {"org/model", "main", std::string(64, 'a'), std::string(64, 'c'), 8, 4, 2, 2};
  set.calibration = {std::string(64, 'b'), 100, 2};
  set.windows = {32, 128};
  set.key_codec.group_size = 2;
  set.has_clip_ratios = true;
  set.key_clip_scalar = 0.95;
  set.value_clip_scalar = 0.9;
  set.recipe = {{"name", "oscar"}};
  return set;
}

void write_part(const fs::path& folder, const RotationPart& part, const RotationFormats& formats, bool replace) {
  Set set = set_of(part);
  if (part.latent) set.origin = {{"format", "mla"}, {"files", Json::array()}, {"unknown", Json::array()}};
  write_set(folder, set, formats, replace);
}

RotationPart read_part(const fs::path& folder) { return read_set(folder).rotations.at(kRotationsName); }

std::string env_for(const std::string& server, const RotationPart& part, const ServedFiles& files = {}) {
  return serve_env(part, reader_from_name(server, ""), files);
}

void check_equal(const SideTransform& a, const SideTransform& b) {
  CHECK(a.rotation.data == b.rotation.data);
  CHECK(a.rotation.count == b.rotation.count);
  CHECK(a.eigenvalues == b.eigenvalues);
  CHECK(a.clip_ratio == b.clip_ratio);
  CHECK(a.scores == b.scores);
}

}  // namespace

TEST_CASE("a set gives back what was written, from HDF5 and from .pt alone, per layer and per head") {
  for (const int heads : {1, 2}) {
    for (const bool h5 : {true, false}) {
      CAPTURE(heads);
      CAPTURE(h5);
      const test::TemporaryFolder folder;
      const RotationPart set = sample(heads);
      write_part(folder / "set", set, {.pt = true, .h5 = h5}, false);

      const RotationPart read = read_part(folder / "set");

      CHECK(read.key_objective == set.key_objective);
      CHECK(read.model == set.model);
      CHECK(read.calibration == set.calibration);
      CHECK(read.windows == set.windows);
      CHECK(read.key_codec.group_size == 2);
      CHECK(read.key_clip_scalar == 0.95);
      CHECK(read.has_clip_ratios);
      REQUIRE(read.layers.size() == 2);
      CHECK(read.layers[1].layer_id == 7);
      check_equal(read.layers[1].key, set.layers[1].key);
      check_equal(read.layers[0].value, set.layers[0].value);
      CHECK((read.layers[0].key.covariance.count > 0) == h5);
    }
  }
}

TEST_CASE("an existing folder is kept unless it is to be replaced") {
  const test::TemporaryFolder folder;
  write_part(folder / "set", sample(), {}, false);
  CHECK_ERROR(write_part(folder / "set", sample(), {}, false), UsageError, "--force");
  RotationPart other = sample();
  other.key_objective = "ktk_plain";
  write_part(folder / "set", other, {}, true);
  CHECK(fs::exists(folder / "set/k_rotation_ktk_plain.pt"));
  CHECK_FALSE(fs::exists(folder / "set/k_rotation_qqt_r_h_pbr.pt"));
}

TEST_CASE("a folder of two foreign files is a set without clip ratios") {
  const test::TemporaryFolder folder;
  write_part(folder / "set", sample(), {}, false);
  fs::remove(folder / "set/manifest.json");
  const RotationPart set = read_part(folder / "set");
  CHECK_FALSE(set.has_clip_ratios);
  CHECK(set.layers[0].value.rotation.data == sample().layers[0].value.rotation.data);
  fs::remove(folder / "set/v_rotation_sst_r_h_pbr.pt");
  CHECK_ERROR((void)read_part(folder / "set"), DataError, "v_rotation");
}

TEST_CASE("serve.env tells a server everything") {
  const std::string env = env_for("sglang-v1", sample());
  for (const char* line : {"SGLANG_OSCAR_K_CLIP_RATIO=0.95", "SGLANG_OSCAR_V_CLIP_RATIO=0.9", "PREFIX_TOKENS=32",
                           "RECENT_TOKENS=128", "--kv-cache-quant-group-size 2", "k_rotation_qqt_r_h_pbr.pt"}) {
    CHECK_MESSAGE(env.find(line) != std::string::npos, line);
  }
  RotationPart stretched = sample();
  stretched.layers[1].key.read_rotation = stretched.layers[1].key.rotation;
  const std::string served = env_for("sglang", stretched);
  CHECK(served.find("format version 3: layer 7 has a read side") != std::string::npos);
  CHECK(served.find("SGLANG_OSCAR_K_ROTATION_PATH") != std::string::npos);
  CHECK(env_for("llamacpp", sample()).find("LLAMA_KV_CLIP_RATIO=0.95\n") != std::string::npos);
  stretched.has_clip_ratios = false;
  for (const char* line : {"SGLANG_OSCAR_K_CLIP_RATIO=0.96\n", "LLAMA_KV_CLIP_RATIO=0.96\n"}) {
    const std::string published = env_for(line[0] == 'L' ? "llamacpp" : "sglang", stretched);
    CHECK_MESSAGE(published.find(std::string("; these are the published ones.\n") + line) != std::string::npos, line);
  }
}

TEST_CASE("a server is told of the part that it reads, or why there is none") {
  const test::TemporaryFolder folder;
  Set set = set_of(sample(2));
  write_set(folder / "set", set, {}, false);
  CHECK(server_settings(read_set(folder / "set"), "", folder / "set").server == "sglang");
  CHECK_ERROR((void)server_settings(set, "llamacpp", "set"), DataError,
              "no part for llamacpp; of rotations, layer 3 has one rotation per head");
  set.readers = {"vllm"};
  write_set(folder / "unserved", set, {}, false);
  CHECK_FALSE(fs::exists(folder / "unserved/serve.env"));
  CHECK_ERROR((void)server_settings(set, "", "set"), DataError, "no part for sglang");
}

TEST_CASE("serve.env says which tree it was written for, and what older ones do not know") {
  CHECK(env_for("sglang-v1", sample()).find("main at 00b29b8") != std::string::npos);
  CHECK(env_for("sglang-v1", sample()).find("SGLANG_OSCAR_ABSORB_V_ROTATION=1") != std::string::npos);
  RotationPart set = sample(2);
  CHECK(env_for("sglang", set).find("format version 2: layer 3 has one rotation per head") != std::string::npos);
  CHECK(env_for("sglang", set).find("SGLANG_OSCAR_ABSORB_V_ROTATION=0") != std::string::npos);
  CHECK(env_for("sglang", set).find("K_MEAN") == std::string::npos);
  set.layers.front().key.mean = {1, 2, 3, 4};
  const test::TemporaryFolder folder;
  write_part(folder / "set", set, {}, false);
  const RotationPart read = read_part(folder / "set");
  const std::string env = read_text(folder / "set/serve.env");
  CHECK(env.find("SGLANG_OSCAR_K_MEAN_PATH=\"$oscar_set/k_mean.pt\"\nSGLANG_OSCAR_K_MEAN_IN_POOL=1\n") !=
        std::string::npos);
  CHECK(env.find("do not know SGLANG_OSCAR_K_MEAN_PATH") != std::string::npos);
  CHECK(env.find("  k_mean.pt\n") != std::string::npos);
  const PtValue means = read_pt(folder / "set/k_mean.pt");
  const auto mean_of = [&](int layer) {
    return *means.find("layers")->find(std::int64_t{layer})->find("mu")->get_if<Tensor>();
  };
  CHECK(mean_of(3).shape == std::vector<std::int64_t>{2, 2});
  CHECK(mean_of(3).to_doubles() == std::vector<double>{1, 2, 3, 4});
  CHECK(mean_of(7).to_doubles() == std::vector<double>{0, 0, 0, 0});
}

TEST_CASE("latent rows of an MLA model are served from a file per layer") {
  const test::TemporaryFolder folder;
  RotationPart set = sample();
  set.latent = true;
  for (LayerRotation& layer : set.layers) {
    layer.value.rotation = layer.key.rotation;
    layer.key.eigenvalues.clear(), layer.value.eigenvalues.clear();  // files of others do not tell them
  }
  write_part(folder / "set", set, {.h5 = false}, false);
  const RotationPart read = read_part(folder / "set");
  CHECK(read.layers[1].key.rotation.data == set.layers[1].key.rotation.data);
  CHECK(read_pt(folder / "set/layer_7.pt").get_if<Tensor>() != nullptr);
  const std::string env = read_text(folder / "set/serve.env");
  for (const char* line : {"SGLANG_OSCAR_MLA_KV_ROTATION_PATH=\"$oscar_set\"\n", "SGLANG_OSCAR_MLA_KV_GROUP_SIZE=2\n",
                           "SGLANG_OSCAR_MLA_KV_PACKED=1\n", "--kv-cache-dtype bfloat16\n", "  layer_7.pt\n",
                           "do not know SGLANG_OSCAR_MLA_KV_ROTATION_PATH"}) {
    CHECK_MESSAGE(env.find(line) != std::string::npos, line);
  }
  CHECK(env.find("SGLANG_OSCAR_K_ROTATION_PATH") == std::string::npos);
  CHECK(env.find("older trees stop") == std::string::npos);
  set.layers[0].key.read_rotation = set.layers[0].key.rotation;
  CHECK(env_for("sglang", set, {{"layer_3.pt", ""}}).find("older trees stop at start") != std::string::npos);
}

TEST_CASE("read sides, mean keys and the codec of both sides survive every format") {
  const test::TemporaryFolder folder;
  RotationPart set = sample(2);
  LayerRotation& layer = set.layers.front();
  layer.key.read_rotation = layer.value.rotation;
  layer.value.read_rotation = layer.key.rotation;
  layer.key.mean = {1, 2, 3, 4};
  set.key_codec = {.group_size = 2, .grid = Grid::kLloydMax, .scale_dtype = DType::kF16};
  set.value_codec = set.key_codec;
  for (const bool h5 : {false, true}) {
    const fs::path path = folder / (h5 ? "h5" : "pt");
    write_part(path, set, {.pt = !h5, .h5 = h5}, false);
    const RotationPart read = read_part(path);
    CHECK(read.layers[0].key.read_rotation.data == layer.key.read_rotation.data);
    CHECK(read.layers[0].value.read_rotation.data == layer.value.read_rotation.data);
    CHECK(read.layers[0].key.mean == layer.key.mean);
    CHECK(read.layers[1].key.read_rotation.count == 0);
    CHECK(read.key_codec == set.key_codec);
    CHECK(read.value_codec == set.value_codec);
  }
  layer.value.mean = layer.key.mean;
  write_part(folder / "h5", set, {.pt = false}, true);
  CHECK_ERROR((void)read_part(folder / "h5"), DataError, "rotations: values have a mean");
}

TEST_CASE("a read side of another number of matrices is refused") {
  const test::TemporaryFolder folder;
  RotationPart set = sample();
  set.layers.front().key.read_rotation = MatrixStack(3, 2);
  write_rotation_pt_files(folder.path(), set, 0);
  CHECK_ERROR((void)read_rotation_pt(folder / key_pt_name(set)), DataError, "q_rotation does not fit the rotation");
}

TEST_CASE("serve.env switches Lloyd-Max on where the server has it, and says how scales are stored") {
  RotationPart set = sample();
  set.key_codec.grid = Grid::kLloydMax;
  set.key_codec.scale_dtype = DType::kBF16;
  CHECK(env_for("sglang-v1", sample()).find("SGLANG_LLOYD_MAX=0") != std::string::npos);
  CHECK(env_for("sglang-v1", sample()).find("SCALE_DTYPE=float32") != std::string::npos);
  CHECK(env_for("sglang", set).find("SGLANG_LLOYD_MAX=1") != std::string::npos);
  CHECK(env_for("sglang", set).find("SCALE_DTYPE=bfloat16") != std::string::npos);
  const auto beyond = [&](const char* reader) { return beyond_reader(reader_from_name(reader, ""), set); };
  CHECK(beyond("sglang").empty());
  CHECK(beyond("llamacpp") == "codec lloyd-max");
  CHECK(beyond("vllm") == "rotations");
  set.key_codec.group_size = 1;
  CHECK(beyond("sglang") == "codec lloyd-max for other rows than whole clipped heads");
  set.key_codec.group_size = 0;
  set.value_clip_scalar = 0;
  CHECK(beyond("sglang-v1") == "codec lloyd-max for other rows than whole clipped heads");
}

TEST_CASE("clip ratios per head survive every format, and bare files of version 3 tell them") {
  const test::TemporaryFolder folder;
  RotationPart set = sample();
  set.layers[0].key.head_clip_ratios = {0.9, 0.98};
  set.layers[1].value.head_clip_ratios = {1, 0.85};
  for (SideTransform* side : {&set.layers[0].key, &set.layers[0].value}) side->read_rotation = side->rotation;
  for (const bool h5 : {false, true}) {
    const fs::path path = folder / (h5 ? "h5" : "pt");
    write_part(path, set, {.pt = !h5, .h5 = h5}, false);
    if (!h5) fs::remove(path / "manifest.json");
    const RotationPart read = read_part(path);
    CHECK(read.has_clip_ratios);
    CHECK(read.value_clip_scalar == 0.9);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(read.layers[i].key.head_clip_ratios == set.layers[i].key.head_clip_ratios);
      CHECK(read.layers[i].value.head_clip_ratios == set.layers[i].value.head_clip_ratios);
    }
    CHECK(read.layers[1].key.clip_ratio == 0.94);
    CHECK(read_json(path / "k_clip_per_head.json") ==
          Json({{"3,0", 0.9}, {"3,1", 0.98}, {"7,0", 0.94}, {"7,1", 0.94}}));
    CHECK(read_json(path / "v_clip_per_head.json")["7,1"] == 0.85);
    CHECK(read_json(path / "k_clip_per_layer.json") == Json({0.95, 0.95, 0.95, 0.94, 0.95, 0.95, 0.95, 0.94}));
  }
}

}  // namespace oscar
