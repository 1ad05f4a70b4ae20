// SPDX-License-Identifier: MIT
// What a set says in several places is one thing. Sets of a stranger who can write every file and knows how to hash,
// and files that nobody lists: tests/faults/set_edits.py.
#include "set/one_truth.hpp"

#include <doctest/doctest.h>

#include "base/atomic_file.hpp"
#include "base/files.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
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
