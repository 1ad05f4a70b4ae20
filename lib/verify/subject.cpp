// SPDX-License-Identifier: MIT
#include "verify/subject.hpp"

#include "rotation/formats.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// A lone file says which side it is by its name, or by an objective that only one side has.
std::string lone_target(const fs::path& path, const std::string& objective) {
  const std::string name = path.filename().string();
  if (name.starts_with("k_")) return "key";
  if (name.starts_with("v_")) return "value";
  const std::string first = objective_name(objective);
  if (first == "qqt" || first == "ktk") return "key";
  if (first == "sst" || first == "oto" || first == "vtv") return "value";
  return "";
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
  return subject;
}

}  // namespace oscar
