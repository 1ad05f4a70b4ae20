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

/// Servers load the .pt file: where a set of ours has one, its matrices are what is under test, with the covariance
/// that the set carries beside them.
void take_served_matrices(RotationFile served, SubjectSide& side) {
  for (auto& [id, transform] : served.layers) {
    const auto known =
        std::find_if(side.layers.begin(), side.layers.end(), [id = id](const auto& l) { return l.first == id; });
    if (known == side.layers.end()) continue;
    transform.covariance = std::move(known->second.covariance);
    transform.query_covariance = std::move(known->second.query_covariance);
    transform.scores = std::move(known->second.scores);
    transform.clip_ratio = known->second.clip_ratio;
    transform.head_clip_ratios = known->second.head_clip_ratios;
  }
  side.objective = served.objective;
  side.layers = std::move(served.layers);
}

/// Its matrices move to the sides.
std::vector<SubjectSide> sides_of(RotationSet& set) {
  std::vector<SubjectSide> sides{{"key", set.key_objective, {}}, {"value", set.value_objective, {}}};
  for (LayerRotation& layer : set.layers) {
    sides[0].layers.emplace_back(layer.layer_id, std::move(layer.key));
    sides[1].layers.emplace_back(layer.layer_id, std::move(layer.value));
  }
  set.layers.clear();
  return sides;
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
void read_folder(const fs::path& folder, const Json& objectives, Subject& subject) {
  const std::array files{folder / ("k_rotation_" + objectives.value("key", "") + ".pt"),
                         folder / ("v_rotation_" + objectives.value("value", "") + ".pt")};
  std::array<std::optional<RotationFile>, 2> served;
  parallel_for(files.size() + 1, [&](std::size_t i) {
    if (i == 0) {
      subject.set = read_rotation_set(folder, ListedFiles::kChecked);
      subject.disagreements = disagreements(folder, subject.set);
    } else if (fs::exists(files[i - 1])) {
      served[i - 1] = read_rotation_pt(files[i - 1]);
    }
  });
  subject.sides = sides_of(subject.set);
  for (std::size_t i = 0; i < served.size(); ++i) {
    if (served[i]) take_served_matrices(std::move(*served[i]), subject.sides[i]);
  }
}

}  // namespace

Subject read_subject(const fs::path& path) {
  Subject subject;
  subject.path = path;
  if (!fs::is_directory(path)) {
    RotationFile file = read_rotation_pt(path);
    subject.sides.push_back({lone_target(path, file.objective), file.objective, std::move(file.layers)});
    return subject;
  }
  subject.ours = fs::exists(path / "manifest.json");
  if (subject.ours) {
    read_folder(path, read_json(path / "manifest.json").at("objectives"), subject);
  } else {
    subject.set = read_rotation_set(path, ListedFiles::kChecked);
    subject.sides = sides_of(subject.set);
  }
  return subject;
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
