// SPDX-License-Identifier: MIT
#include "verify/structure/subject.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "rotation/formats.hpp"
#include "rotation/one_truth.hpp"
#include "verify/structure/objective.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// A lone file says which side it is by its name, or by an objective that only one side has.
std::string lone_target(const fs::path& path, const std::string& objective) {
  const std::string name = path.filename().string();
  if (name.starts_with("k_")) return "key";
  if (name.starts_with("v_")) return "value";
  if (fits_keys(objective)) return "key";
  return fits_values(objective) ? "value" : "";
}

/// Servers load the .pt file: where a set of ours has one, its matrices are what is under test, with what the set says
/// beside them of the same layers.
SubjectSide served_side(const SubjectSide& fitted, RotationFile served) {
  SubjectSide side{fitted.target, served.objective, {}};
  for (auto& [id, matrices] : served.layers) {
    SideTransform& transform = side.layers.emplace_back(id, std::move(matrices)).second;
    const auto known = std::ranges::find(fitted.layers, id, [](const auto& layer) { return layer.first; });
    if (known == fitted.layers.end()) continue;
    transform.covariance = known->second.covariance;
    transform.query_covariance = known->second.query_covariance;
    transform.scores = known->second.scores;
    transform.clip_ratio = known->second.clip_ratio;
    transform.head_clip_ratios = known->second.head_clip_ratios;
  }
  return side;
}

/// What was read as a subject: the matrices of the set become its sides.
Subject subject_of(const fs::path& path, bool ours, RotationSet set, std::vector<std::string> disagreements) {
  std::vector<SubjectSide> sides{{"key", set.key_objective, {}}, {"value", set.value_objective, {}}};
  for (LayerRotation& layer : set.layers) {
    sides[0].layers.emplace_back(layer.layer_id, std::move(layer.key));
    sides[1].layers.emplace_back(layer.layer_id, std::move(layer.value));
  }
  set.layers.clear();
  return {path, std::move(sides), std::move(set), ours, nullptr, std::move(disagreements)};
}

SideTransform without_covariances(const SideTransform& transform) {
  SideTransform copy;
  static_cast<Transform&>(copy) = transform;
  copy.eigenvalues = transform.eigenvalues;
  copy.clip_ratio = transform.clip_ratio;
  copy.head_clip_ratios = transform.head_clip_ratios;
  return copy;
}

/// The files of a folder of ours are independent, and large where every head has matrices.
Subject read_folder(const fs::path& folder, const Json& objectives) {
  const std::array files{folder / ("k_rotation_" + objectives.value("key", "") + ".pt"),
                         folder / ("v_rotation_" + objectives.value("value", "") + ".pt")};
  std::array<std::optional<RotationFile>, 2> served;
  std::optional<Subject> fitted;
  parallel_for(files.size() + 1, [&](std::size_t i) {
    if (i == 0) {
      RotationSet set = read_rotation_set(folder, ListedFiles::kChecked);
      std::vector<std::string> found = disagreements(folder, set);
      fitted = subject_of(folder, true, std::move(set), std::move(found));
    } else if (fs::exists(files[i - 1])) {
      served[i - 1] = read_rotation_pt(files[i - 1]);
    }
  });
  std::vector<SubjectSide> sides;
  for (std::size_t i = 0; i < served.size(); ++i) {
    SubjectSide& side = fitted->sides[i];
    sides.push_back(served[i] ? served_side(side, std::move(*served[i])) : std::move(side));
  }
  return {folder, std::move(sides), std::move(fitted->set), true, nullptr, std::move(fitted->disagreements)};
}

}  // namespace

Subject read_subject(const fs::path& path) {
  if (!fs::is_directory(path)) {
    RotationFile file = read_rotation_pt(path);
    return {path, {{lone_target(path, file.objective), file.objective, std::move(file.layers)}}, {}, false, nullptr,
            {}};
  }
  if (fs::exists(path / "manifest.json")) return read_folder(path, read_json(path / "manifest.json").at("objectives"));
  return subject_of(path, false, read_rotation_set(path, ListedFiles::kChecked), {});
}

RotationSet set_of(const Subject& subject) {
  OSCAR_CHECK(subject.sides.size() == 2 && subject.sides[0].layers.size() == subject.sides[1].layers.size());
  RotationSet set = subject.set;
  for (std::size_t i = 0; i < subject.sides[0].layers.size(); ++i) {
    const auto& [id, key] = subject.sides[0].layers[i];
    set.layers.push_back({id, without_covariances(key), without_covariances(subject.sides[1].layers[i].second)});
  }
  return set;
}

}  // namespace oscar
