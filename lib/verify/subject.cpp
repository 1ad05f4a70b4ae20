// SPDX-License-Identifier: MIT
#include "verify/subject.hpp"

#include <algorithm>

#include "rotation/formats.hpp"

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
void take_served_matrices(const fs::path& file, SubjectSide& side) {
  if (!fs::exists(file)) return;
  RotationFile served = read_rotation_pt(file);
  for (auto& [id, transform] : served.layers) {
    const auto known =
        std::find_if(side.layers.begin(), side.layers.end(), [id = id](const auto& l) { return l.first == id; });
    if (known == side.layers.end()) continue;
    transform.covariance = known->second.covariance;
    transform.query_covariance = known->second.query_covariance;
    transform.scores = known->second.scores;
    transform.clip_ratio = known->second.clip_ratio;
  }
  side.objective = served.objective;
  side.layers = std::move(served.layers);
}

/// The set holds what the sides hold, so that what is measured is what was checked.
void put_back(const Subject& subject, RotationSet& set) {
  for (LayerRotation& layer : set.layers) {
    for (const SubjectSide& side : subject.sides) {
      for (const auto& [id, transform] : side.layers) {
        if (id == layer.layer_id) (side.target == "key" ? layer.key : layer.value) = transform;
      }
    }
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
  subject.set = read_rotation_set(path);
  subject.ours = subject.set.manifest.is_object();
  SubjectSide key{"key", subject.set.key_objective, {}};
  SubjectSide value{"value", subject.set.value_objective, {}};
  for (const LayerRotation& layer : subject.set.layers) {
    key.layers.emplace_back(layer.layer_id, layer.key);
    value.layers.emplace_back(layer.layer_id, layer.value);
  }
  subject.sides = {std::move(key), std::move(value)};
  if (subject.ours) {
    take_served_matrices(path / ("k_rotation_" + subject.set.key_objective + ".pt"), subject.sides[0]);
    take_served_matrices(path / ("v_rotation_" + subject.set.value_objective + ".pt"), subject.sides[1]);
    put_back(subject, subject.set);
  }
  return subject;
}

}  // namespace oscar
