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
#include "set/set_folder.hpp"
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

RotationPart honest_rotations() {
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

/// With means, as readers of format version 3 take them.
RotationPart honest_means() {
  RotationPart part = honest_rotations();
  part.key_objective = "stretch_fisher_r_h_pbr";
  for (LayerRotation& layer : part.layers) {
    layer.key.read_rotation = layer.key.rotation;
    layer.key.mean = {0.5, 0.25, 1, 2};
  }
  return part;
}

CodedPart honest_coded() {
  CodedPart part;
  const RotationPart rotations = honest_rotations();
  part.model = rotations.model, part.calibration = rotations.calibration, part.windows = rotations.windows;
  part.model.head_dim = 8;
  part.bits = 4, part.scope = "model", part.recipe = {{"name", "coded"}};
  CodedSide side;
  side.transform.rotation = side.transform.read_rotation = MatrixStack(2, 8);
  side.formats.assign(2, {std::vector<int>(8, 4), std::vector<float>(8, 0.5F), std::vector<float>(8, 1.5F)});
  side.lambda.assign(16, 1);
  part.layers = {{3, side, side}, {7, side, side}};
  return part;
}

/// A set with two parts of rotations.
Set honest() {
  Set set = set_of(honest_rotations());
  set.rotations[kWithMeansName] = honest_means();
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
  std::string what;
  std::function<void(const fs::path& folder)> forge;
};

void edit_manifest(const fs::path& folder, const std::function<void(Json&)>& edit) {
  Json manifest = read_json(folder / "manifest.json");
  edit(manifest);
  write_json(folder / "manifest.json", manifest);
}

/// A file of a part of the set, as another set would have it.
std::function<void(const fs::path&)> file_of(const char* name, const std::function<void(RotationPart&)>& edit) {
  return [=](const fs::path& folder) {
    Set other = honest();
    edit(other.rotations.at(std::string(name).starts_with(kWithMeansName) ? kWithMeansName : kRotationsName));
    const test::TemporaryFolder elsewhere;
    write_set(elsewhere / "set", other, {}, false);
    fs::copy_file(elsewhere / (std::string("set/") + name), folder / name, fs::copy_options::overwrite_existing);
  };
}

std::function<void(const fs::path&)> manifest_with(const std::function<void(Json&)>& edit) {
  return [=](const fs::path& folder) { edit_manifest(folder, edit); };
}

/// A member of what the manifest says of the part "rotations".
std::function<void(const fs::path&)> part_with(const std::function<void(Json&)>& edit) {
  return manifest_with([=](Json& manifest) { edit(manifest["parts"][kRotationsName]); });
}

/// Every forgery is refused, and none for its hashes.
void check_refused(const Set& set, const std::vector<Forgery>& forgeries) {
  for (const Forgery& forgery : forgeries) {
    CAPTURE(forgery.what);
    const test::TemporaryFolder folder;
    write_set(folder / "set", set, {}, false);
    forgery.forge(folder / "set");
    hash_again(folder / "set");
    CHECK_THROWS_AS((void)read_set(folder / "set"), DataError);
  }
}

constexpr char kMeans[] = "with_means/k_rotation_stretch_fisher_r_h_pbr.pt";
constexpr char kKeys[] = "k_rotation_qqt_r_h_pbr.pt", kValues[] = "v_rotation_sst_r_h_pbr.pt";

}  // namespace

TEST_CASE("comments of serve.env may be of another version, its lines may not") {
  const test::TemporaryFolder folder;
  write_set(folder / "set", honest(), {}, false);
  const std::string env = read_text(folder / "set/serve.env");
  for (const auto& [text, fits] :
       {std::pair{"# of another version\n" + env, true}, {env + "x=1\n", false}, {"", false}}) {
    write_file(folder / "set/serve.env", text);
    hash_again(folder / "set");
    CHECK(disagreements(folder / "set", read_set(folder / "set", ListedFiles::kChecked)).empty() == fits);
  }
}

TEST_CASE("an honest set says one thing, whichever its parts and files") {
  Set coded = set_of(honest_coded()), all = honest();
  for (auto& [name, part] : all.rotations) part.model.head_dim = 0;
  all.model.head_dim = 0, all.coded = honest_coded();
  for (const Set& set : {honest(), coded, all, set_of(honest_means(), kWithMeansName)}) {
    for (const RotationFormats formats : {RotationFormats{}, {.pt = false}, {.h5 = false}}) {
      const test::TemporaryFolder folder;
      write_set(folder / "set", set, formats, false);
      CHECK(disagreements(folder / "set", read_set(folder / "set")) == std::vector<std::string>());
    }
  }
}

TEST_CASE("a set that contradicts itself is refused although every hash is right") {
  check_refused(
      honest(),
      {
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
          {"manifest: window", manifest_with([](Json& m) { m["windows"]["recent"] = 0; })},
          {"manifest: clip ratio", part_with([](Json& m) { m["layers"][0]["key"]["clip_ratio"] = 0.5; })},
          {"manifest: scalar", part_with([](Json& m) { m["codec"]["clip_scalar"]["key"] = 0.5; })},
          {"manifest: levels", part_with([](Json& m) {
             m["codec"]["levels"] = {16, 16};
           })},
          {"manifest: codec", part_with([](Json& m) { m["codec"]["name"] = "lloyd-max"; })},
          {"manifest: model", manifest_with([](Json& m) { m["model"]["id"] = "org/other"; })},
          {"manifest: head_dim", part_with([](Json& m) { m["layers"][1]["head_dim"] = 4; })},
          {"manifest: model's head_dim", manifest_with([](Json& m) { m["model"]["head_dim"] = 4; })},
          {"manifest: fewer layers", part_with([](Json& m) { m["layers"].erase(1); })},
          {"manifest: a layer twice", part_with([](Json& m) { m["layers"].push_back(m["layers"][1]); })},
          {"manifest: order", part_with([](Json& m) { std::swap(m["layers"][0], m["layers"][1]); })},
          {"manifest: a layer that the model lacks", manifest_with([](Json& m) { m["model"]["num_layers"] = 5; })},
          {"manifest: spectrum", part_with([](Json& m) { m["layers"][0]["value"]["eigenvalues"]["max"] = 9; })},
          {"manifest: objective", part_with([](Json& m) { m["objectives"]["key"] = "ktk_r_h_pbr"; })},
          {"manifest: readers", manifest_with([](Json& m) { m["readers"]["sglang"] = "rotations"; })},
          {"manifest: a reader that can read no part", manifest_with([](Json& m) { m["readers"]["vllm"] = "coded"; })},
          {"manifest: the verdict of another part", manifest_with([](Json& m) {
             m["verification"] = {{"readers", {{"sglang", {{"part", "rotations"}, {"verdict", "accepted"}}}}}};
           })},
          {"means: a matrix of the .pt",
           file_of(kMeans, [](RotationPart& s) { s.layers[0].key.rotation = turned(0.11).rotation; })},
          {"means: k_mean.pt", file_of("with_means/k_mean.pt", [](RotationPart& s) { s.layers[0].key.mean[1] = 3; })},
          {"means: a mean of the .h5",
           file_of("with_means/rotations.h5", [](RotationPart& s) { s.layers[0].key.mean[1] = 3; })},
          {"means: clip table",
           file_of("with_means/k_clip_per_layer.json", [](RotationPart& s) { s.layers[0].key.clip_ratio = 0.5; })},
          {"means: serve.env of the other part",
           [](const fs::path& set) {
             fs::copy_file(set / "serve.env", set / "with_means/serve.env", fs::copy_options::overwrite_existing);
           }},
          {"means: a script", [](const fs::path& set) { write_file(set / "with_means/setup.sh", "touch x\n"); }},
          {"a served file more", [](const fs::path& set) { fs::copy_file(set / kKeys, set / "k_rotation_other.pt"); }},
          {"a script", [](const fs::path& set) { write_file(set / "setup.sh", "touch x\n"); }},
      });
}

TEST_CASE("a coded part that contradicts its manifest is refused although every hash is right") {
  const auto layer = [](const auto& edit) {
    return manifest_with([=](Json& manifest) { edit(manifest["parts"][kCodedName]["layers"][1]); });
  };
  check_refused(set_of(honest_coded()),
                {{"bits", layer([](Json& l) { l["key"]["bits"] = 1; })},
                 {"bytes of a row", layer([](Json& l) { l["value"]["row_bytes"][0] = 5; })},
                 {"most levels", layer([](Json& l) { l["key"]["most_levels"][1] = 16; })},
                 {"heads", layer([](Json& l) { l["key"]["row_bytes"].push_back(4); })},
                 {"head_dim", layer([](Json& l) { l["head_dim"] = 16; })},
                 {"value_dim", layer([](Json& l) { l["value_dim"] = 16; })},
                 {"layer that the file lacks", layer([](Json& l) { l["layer_id"] = 5; })},
                 {"a layer twice", manifest_with([](Json& m) {
                    Json& layers = m["parts"][kCodedName]["layers"];
                    layers[1] = layers[0];
                  })},
                 {"fewer layers", manifest_with([](Json& m) { m["parts"][kCodedName]["layers"].erase(1); })},
                 {"order", manifest_with([](Json& m) {
                    Json& layers = m["parts"][kCodedName]["layers"];
                    std::swap(layers[0], layers[1]);
                  })},
                 {"bits taken", manifest_with([](Json& m) { m["parts"][kCodedName]["codec"]["bits_taken"] = 3; })},
                 {"heads of the model", manifest_with([](Json& m) { m["model"]["num_key_value_heads"] = 4; })},
                 {"dimension of the model", manifest_with([](Json& m) { m["model"]["head_dim"] = 16; })},
                 {"layers of the model", manifest_with([](Json& m) { m["model"]["num_layers"] = 5; })},
                 {"readers", manifest_with([](Json& m) { m["readers"]["sglang"] = "coded"; })},
                 {"a file of another part", [](const fs::path& set) { write_file(set / "rotations.h5", "x"); }}});
}

TEST_CASE("what the manifest does not list may not be there, and what it lists must") {
  const test::TemporaryFolder folder;
  write_set(folder / "set", honest(), {}, false);
  write_file(folder / "set/notes.txt", "from me");
  CHECK_ERROR((void)read_set(folder / "set"), DataError, "notes.txt is there, and the manifest does not list it");
  hash_again(folder / "set");
  CHECK_NOTHROW((void)read_set(folder / "set"));
  edit_manifest(folder / "set", [](Json& m) { m["files"].push_back(m["files"][0]); });
  CHECK_ERROR((void)read_set(folder / "set"), DataError, "twice");
  for (const char* name : {".bashrc", "Makefile", "x.so", "x.pth", "deep/serve.env"}) {
    write_set(folder / "set", honest(), {}, true);
    fs::create_directories((folder / "set" / name).parent_path());
    write_file(folder / "set" / name, "somebody runs this");
    hash_again(folder / "set");
    CHECK_ERROR((void)read_set(folder / "set"), DataError, "is none of the files that a set has");
  }
}

TEST_CASE("a whole set in one file is held to its manifest, too") {
  const test::TemporaryFolder folder;
  for (const auto& [name, kind] : {std::pair{"x.h5", SetFileKind::kH5}, {"x.safetensors", SetFileKind::kSafetensors}}) {
    write_set_file(folder / name, kind, set_of(honest_rotations()));
    CHECK_NOTHROW((void)read_set_file(folder / name, kind));
  }
  Set wrong = set_of(honest_rotations());
  wrong.model.head_dim = 4;
  write_set_file(folder / "x.h5", SetFileKind::kH5, wrong);
  CHECK_ERROR((void)read_set_file(folder / "x.h5", SetFileKind::kH5), DataError, "head_dim 4");
}

}  // namespace oscar
