// SPDX-License-Identifier: MIT
// Sets of a stranger who can write every file and knows how to hash.
#include "set/one_truth.hpp"

#include <doctest/doctest.h>

#include <functional>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "set/rotation_pt.hpp"
#include "set/serve_env.hpp"
#include "set/set_file.hpp"
#include "support/support.hpp"

namespace oscar {
namespace {

SideTransform turned(double angle) {
  SideTransform side;
  side.rotation = MatrixStack(1, 2);
  const double c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
  side.rotation.data = {c, s, -s, c};
  side.eigenvalues = {0.5, 1.5};
  side.covariance = side.rotation;
  side.clip_ratio = 0.9375;
  return side;
}

RotationPart honest() {
  RotationPart set;
  set.key_objective = "qqt_r_h_pbr", set.value_objective = "sst_r_h_pbr";
  set.layers = {{3, turned(0.1), turned(0.2)}, {7, turned(0.3), turned(0.4)}};
  set.model = {"org/model", "main", std::string(64, 'a'), 8, 4, 2, 2};
  set.calibration = {std::string(64, 'b'), 100, 2};
  set.windows = {32, 128};
  set.has_clip_ratios = true;
  set.key_clip_scalar = 0.95, set.value_clip_scalar = 0.9;
  set.recipe = {{"name", "oscar"}, {"codec", "minmax"}, {"levels", {4, 4}}, {"group_size", 0}};
  return set;
}

/// What the manifest lists is made to be what lies there.
void hash_again(const fs::path& folder) {
  Json manifest = read_json(folder / "manifest.json");
  std::vector<fs::path> files;
  for (const fs::path& file : list_files(folder)) {
    if (file != "manifest.json") files.push_back(file);
  }
  manifest["files"] = list_with_hashes(folder, files);
  write_json(folder / "manifest.json", manifest);
}

struct Forgery {
  const char* what;
  std::function<void(const fs::path& folder)> forge;
};

void edit_manifest(const fs::path& folder, const std::function<void(Json&)>& edit) {
  Json manifest = read_json(folder / "manifest.json");
  edit(manifest);
  write_json(folder / "manifest.json", manifest);
}

/// A file of the set, as another set would have it.
std::function<void(const fs::path&)> file_of(const char* name, const std::function<void(RotationPart&)>& edit) {
  return [=](const fs::path& folder) {
    RotationPart other = honest();
    edit(other);
    const test::TemporaryFolder elsewhere;
    write_rotation_set(elsewhere / "set", other, {.safetensors = true}, false);
    fs::copy_file(elsewhere / (std::string("set/") + name), folder / name, fs::copy_options::overwrite_existing);
  };
}

std::function<void(const fs::path&)> manifest_with(const std::function<void(Json&)>& edit) {
  return [=](const fs::path& folder) { edit_manifest(folder, edit); };
}

constexpr char kKeys[] = "k_rotation_qqt_r_h_pbr.pt", kValues[] = "v_rotation_sst_r_h_pbr.pt";

}  // namespace

TEST_CASE("comments of serve.env may be of another version, its lines may not") {
  const test::TemporaryFolder folder;
  write_rotation_set(folder / "set", honest(), {}, false);
  const std::string env = read_text(folder / "set/serve.env");
  for (const auto& [text, fits] :
       {std::pair{"# of another version\n" + env, true}, {env + "x=1\n", false}, {"", false}}) {
    write_file(folder / "set/serve.env", text);
    hash_again(folder / "set");
    CHECK(disagreements(folder / "set", read_rotation_set(folder / "set", ListedFiles::kChecked)).empty() == fits);
  }
}

TEST_CASE("means that are not those of the rotation files are found") {
  const test::TemporaryFolder folder;
  RotationPart set = honest();
  set.layers[0].key.mean = {1, 2};
  set.recipe["target"] = "sglang-v3";
  write_rotation_set(folder / "set", set, {}, false);
  require_sound_set(folder / "set");
  set.layers[0].key.mean = {1, 3};
  write_pt(folder / "set/k_mean.pt", key_means_pt(set));
  write_file(folder / "set/serve.env", serve_env(set, hash_served_files(folder / "set", set)));
  hash_again(folder / "set");
  CHECK_ERROR(require_sound_set(folder / "set"), DataError, "k_mean.pt has other means");
}

TEST_CASE("an honest set says one thing, with any files") {
  for (const RotationFormats formats : {RotationFormats{}, {.pt = false}, {.h5 = false}, {.safetensors = true}}) {
    const test::TemporaryFolder folder;
    write_rotation_set(folder / "set", honest(), formats, false);
    const RotationPart set = read_rotation_set(folder / "set", ListedFiles::kChecked);
    CHECK(disagreements(folder / "set", set) == std::vector<std::string>());
  }
}

TEST_CASE("a set that contradicts itself is refused although every hash is right") {
  const std::vector<Forgery> forgeries{
      {"serve.env: a command more",
       [](const fs::path& set) { write_file(set / "serve.env", read_text(set / "serve.env") + "touch x\n"); }},
      {"serve.env: another ratio", file_of("serve.env", [](RotationPart& s) { s.key_clip_scalar = 0.5; })},
      {"clip table", file_of("k_clip_per_layer.json", [](RotationPart& s) { s.layers[0].key.clip_ratio = 0.5; })},
      {"clip table per head",
       file_of("v_clip_per_head.json", [](RotationPart& s) { s.layers[1].value.clip_ratio = 0; })},
      {"a key matrix of the .pt", file_of(kKeys, [](RotationPart& s) { s.layers[0].key = turned(0.11); })},
      {"a value matrix of the .pt", file_of(kValues, [](RotationPart& s) { s.layers[1].value = turned(0.5); })},
      {"layers of the .pt", file_of(kKeys, [](RotationPart& s) { s.layers.pop_back(); })},
      {"eigenvalues of the .pt", file_of(kKeys,
                                         [](RotationPart& s) {
                                           s.layers[0].key.eigenvalues = {1, 2};
                                         })},
      {"a layer more in the .h5", file_of("rotations.h5",
                                          [](RotationPart& s) {
                                            s.layers.push_back({8, turned(1), turned(2)});
                                          })},
      {"h5: clip ratio", file_of("rotations.h5", [](RotationPart& s) { s.layers[0].key.clip_ratio = 0.5; })},
      {"h5: sink", file_of("rotations.h5", [](RotationPart& s) { s.windows.sink = 0; })},
      {"h5: scales", file_of("rotations.h5", [](RotationPart& s) { s.key_codec.scale_dtype = DType::kF16; })},
      {"h5: model", file_of("rotations.h5", [](RotationPart& s) { s.model.config_sha256 = std::string(64, 'c'); })},
      {"h5: tokens", file_of("rotations.h5", [](RotationPart& s) { s.calibration.tokens = 7; })},
      {"h5: recipe", file_of("rotations.h5", [](RotationPart& s) { s.recipe["name"] = "auto"; })},
      {"safetensors", file_of("rotations.safetensors", [](RotationPart& s) { s.layers[0].key = turned(0.11); })},
      {"manifest: window", manifest_with([](Json& m) { m["windows"]["recent"] = 0; })},
      {"manifest: clip ratio", manifest_with([](Json& m) { m["layers"][0]["key"]["clip_ratio"] = 0.5; })},
      {"manifest: scalar", manifest_with([](Json& m) { m["codec"]["clip_scalar"]["key"] = 0.5; })},
      {"manifest: levels", manifest_with([](Json& m) {
         m["codec"]["levels"] = {16, 16};
       })},
      {"manifest: codec", manifest_with([](Json& m) { m["codec"]["name"] = "lloyd-max"; })},
      {"manifest: model", manifest_with([](Json& m) { m["model"]["config_sha256"] = std::string(64, 'c'); })},
      {"manifest: head_dim", manifest_with([](Json& m) { m["layers"][1]["head_dim"] = 4; })},
      {"manifest: model's head_dim", manifest_with([](Json& m) { m["model"]["head_dim"] = 4; })},
      {"manifest: fewer layers", manifest_with([](Json& m) { m["layers"].erase(1); })},
      {"manifest: a layer twice", manifest_with([](Json& m) { m["layers"].push_back(m["layers"][1]); })},
      {"manifest: order", manifest_with([](Json& m) { std::swap(m["layers"][0], m["layers"][1]); })},
      {"manifest: a layer that the model lacks", manifest_with([](Json& m) { m["model"]["num_layers"] = 5; })},
      {"manifest: spectrum", manifest_with([](Json& m) { m["layers"][0]["value"]["eigenvalues"]["max"] = 9; })},
      {"manifest: objective", manifest_with([](Json& m) { m["objectives"]["key"] = "ktk_r_h_pbr"; })},
      {"manifest: target", manifest_with([](Json& m) { m["recipe"]["target"] = "sglang-v9"; })},
      {"a served file more", [](const fs::path& set) { fs::copy_file(set / kKeys, set / "k_rotation_other.pt"); }},
      {"a script", [](const fs::path& set) { write_file(set / "setup.sh", "touch x\n"); }},
  };
  for (const Forgery& forgery : forgeries) {
    CAPTURE(forgery.what);
    const test::TemporaryFolder folder;
    write_rotation_set(folder / "set", honest(), {.safetensors = true}, false);
    forgery.forge(folder / "set");
    hash_again(folder / "set");
    CHECK_THROWS_AS(require_sound_set(folder / "set"), DataError);
  }
}

TEST_CASE("what the manifest does not list may not be there, and what it lists must") {
  const test::TemporaryFolder folder;
  write_rotation_set(folder / "set", honest(), {}, false);
  write_file(folder / "set/notes.txt", "from me");
  CHECK_ERROR(require_sound_set(folder / "set"), DataError, "notes.txt is there, and the manifest does not list it");
  hash_again(folder / "set");
  CHECK_NOTHROW(require_sound_set(folder / "set"));
  edit_manifest(folder / "set", [](Json& m) { m["files"].push_back(m["files"][0]); });
  CHECK_ERROR(require_sound_set(folder / "set"), DataError, "twice");
}

TEST_CASE("files of others are kept as they are, and their manifest says what they say") {
  const test::TemporaryFolder folder;
  write_rotation_set(folder / "own", honest(), {.h5 = false}, false);
  write_foreign_set(folder / "set", folder / "own" / kKeys, folder / "own" / kValues, "hf://org/repo", false);
  CHECK_NOTHROW(require_sound_set(folder / "set"));
  edit_manifest(folder / "set", [](Json& m) { m["model"]["id"] = "org/other"; });
  CHECK_ERROR(require_sound_set(folder / "set"), DataError, "not what the .pt files tell");
}

TEST_CASE("a whole set in one file is held to its manifest, too") {
  const test::TemporaryFolder folder;
  for (const auto& [name, kind] : {std::pair{"x.h5", SetFileKind::kH5}, {"x.safetensors", SetFileKind::kSafetensors}}) {
    write_set_file(folder / name, kind, honest(), true);
    CHECK_NOTHROW((void)read_set_file(folder / name, kind));
  }
  RotationPart wrong = honest();
  wrong.model.head_dim = 4;
  write_set_file(folder / "x.h5", SetFileKind::kH5, wrong, true);
  CHECK_ERROR(read_set_file(folder / "x.h5", SetFileKind::kH5), DataError, "head_dim 4");
}

}  // namespace oscar
