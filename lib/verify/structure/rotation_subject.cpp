// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <optional>

#include "base/check.hpp"
#include "base/threads.hpp"
#include "measure/set_method.hpp"
#include "set/coded_part.hpp"
#include "set/formats.hpp"
#include "set/one_truth.hpp"
#include "verify/methods.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/data_covariance.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

/// A lone file says which side it is by its name, or by an objective that only one side has.
std::string lone_target(const fs::path& path, const std::string& objective) {
  const std::string name = path.filename().string();
  if (name.starts_with("k_")) return "key";
  if (name.starts_with("v_")) return "value";
  if (verify::fits_keys(objective)) return "key";
  return verify::fits_values(objective) ? "value" : "";
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
RotationSubject subject_of(const fs::path& path, bool ours, RotationPart set) {
  RotationSubject subject;
  subject.path = path, subject.ours = ours;
  subject.sides = {{"key", set.key_objective, {}}, {"value", set.value_objective, {}}};
  for (LayerRotation& layer : set.layers) {
    subject.sides[0].layers.emplace_back(layer.layer_id, std::move(layer.key));
    subject.sides[1].layers.emplace_back(layer.layer_id, std::move(layer.value));
  }
  set.layers.clear();
  if (!set.has_clip_ratios) {
    subject.caveats.emplace_back(
        "the set does not say its clip ratios: measured with the published 0.96 for keys, 0.92 for values");
  }
  subject.set = std::move(set);
  return subject;
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
RotationSubject read_folder(const fs::path& folder, const Json& objectives) {
  const std::array files{folder / ("k_rotation_" + objectives.value("key", "") + ".pt"),
                         folder / ("v_rotation_" + objectives.value("value", "") + ".pt")};
  std::array<std::optional<RotationFile>, 2> served;
  RotationSubject subject;
  parallel_for(files.size() + 1, [&](std::size_t i) {
    if (i == 0) {
      RotationPart set = read_rotation_set(folder, ListedFiles::kChecked);
      std::vector<std::string> found = disagreements(folder, set);
      subject = subject_of(folder, true, std::move(set));
      subject.disagreements = std::move(found);
    } else if (fs::exists(files[i - 1])) {
      served[i - 1] = read_rotation_pt(files[i - 1]);
    }
  });
  for (std::size_t i = 0; i < served.size(); ++i) {
    if (served[i]) subject.sides[i] = served_side(subject.sides[i], std::move(*served[i]));
  }
  return subject;
}

/// The eigenvalues over the largest, descending, mean over heads; empty if there is nothing to see.
std::vector<double> mean_spectrum(const SideTransform& t) {
  const auto dim = static_cast<std::size_t>(t.rotation.dim);
  if (dim == 0 || t.eigenvalues.empty() || t.eigenvalues.size() % dim != 0) return {};
  const std::size_t heads = t.eigenvalues.size() / dim;
  std::vector<double> mean(dim);
  for (std::size_t begin = 0; begin < t.eigenvalues.size(); begin += dim) {
    const double highest = t.eigenvalues[begin + dim - 1];
    if (highest <= t.eigenvalues[begin]) return {};
    for (std::size_t i = 0; i < dim; ++i) {
      mean[dim - 1 - i] += t.eigenvalues[begin + i] / highest / static_cast<double>(heads);
    }
  }
  return mean;
}

std::vector<LayerClips> clips_of(const RotationSubject& subject) {
  if (!subject.set.has_clip_ratios || subject.sides.size() != 2) return {};
  const auto ratios = [](const SideTransform& side) {
    return side.head_clip_ratios.empty() ? std::vector<double>{side.clip_ratio} : side.head_clip_ratios;
  };
  std::vector<LayerClips> all;
  for (const auto& [layer, key] : subject.sides[0].layers) {
    for (const auto& [other, value] : subject.sides[1].layers) {
      if (other == layer) all.push_back({layer, ratios(key), ratios(value)});
    }
  }
  return all;
}

}  // namespace

std::unique_ptr<Subject> open_subject(const fs::path& path) {
  if (is_coded_set(path)) return open_coded(path);
  return std::make_unique<RotationSubject>(read_rotations(path));
}

RotationSubject read_rotations(const fs::path& path) {
  if (!fs::is_directory(path)) {
    RotationFile file = read_rotation_pt(path);
    RotationSubject subject;
    subject.path = path;
    subject.sides = {{lone_target(path, file.objective), file.objective, std::move(file.layers)}};
    return subject;
  }
  if (fs::exists(path / "manifest.json")) return read_folder(path, read_json(path / "manifest.json").at("objectives"));
  return subject_of(path, false, read_rotation_set(path, ListedFiles::kChecked));
}

RotationPart set_of(const RotationSubject& subject) {
  OSCAR_CHECK(subject.sides.size() == 2 && subject.sides[0].layers.size() == subject.sides[1].layers.size());
  RotationPart set = subject.set;
  for (std::size_t i = 0; i < subject.sides[0].layers.size(); ++i) {
    const auto& [id, key] = subject.sides[0].layers[i];
    set.layers.push_back({id, without_covariances(key), without_covariances(subject.sides[1].layers[i].second)});
  }
  return set;
}

void RotationSubject::describe(VerifyReport& report) const {
  Json& json = report.rotation_set;
  json["format"] = ours ? "oscar.rotation_set.v1" : "foreign";
  Json objectives = Json::object();
  for (const SubjectSide& side : sides) objectives[side.target.empty() ? "unknown" : side.target] = side.objective;
  json["objectives"] = objectives;
  json["layers"] = sides.front().layers.size();
  if (ours) {
    json["model"] = to_json(set.model);
    json["calibration"] = to_json(set.calibration);
    json["calibration"].erase("blocks");
    json["recipe"] = set.recipe.value("name", "");
    json["verified_before"] = set.verification.is_object();
  }
  for (const SubjectSide& side : sides) {
    for (const auto& [layer, transform] : side.layers) {
      std::vector<double> values = mean_spectrum(transform);
      if (!values.empty()) report.spectra.push_back({layer, side.target, std::move(values)});
    }
  }
  report.clips = clips_of(*this);
}

void RotationSubject::check_files(std::vector<Check>& checks) const {
  if (!ours) return;
  std::string message;
  for (const std::string& clause : disagreements) message += (message.empty() ? "" : "; ") + clause;
  checks.push_back({.name = "derived_files",
                    .value = static_cast<double>(disagreements.size()),
                    .limit = 0,
                    .ok = disagreements.empty(),
                    .message = message});
}

void RotationSubject::check(const verify::Expectation& expected, std::vector<Check>& checks) const {
  verify::check_finite(*this, checks);
  verify::check_coverage(*this, expected, checks);
  verify::check_provenance(*this, expected, checks);
  verify::check_fp8(*this, checks);
  verify::check_orthogonality(*this, checks);
  verify::check_spectrum(*this, checks);
  verify::check_stretch(*this, checks);
  verify::check_decomposition(*this, checks);
}

bool RotationSubject::measurable(const std::vector<Check>& checks) const {
  constexpr std::array kNeeded{"finite", "shape", "layer_coverage", "sides_agree"};
  return std::ranges::none_of(checks, [&](const Check& check) {
    return check.ok == false && std::ranges::find(kNeeded, check.name) != kNeeded.end();
  });
}

std::optional<KvMethod> RotationSubject::method(Windows of_report) const {
  if (sides.size() != 2) return std::nullopt;
  return method_of(set_of(*this), of_report);
}

verify::DataMoments RotationSubject::take(int layer, LayerStream& stream, bool same_tokens, std::int64_t tokens,
                                          Backend& backend) const {
  verify::DataMoments found;
  for (const SubjectSide& side : sides) {
    if (side.target.empty()) continue;
    auto covariance = verify::covariance_of(side.objective, stream, backend);
    if (covariance) found.covariances.push_back({layer, side.target, std::move(*covariance), same_tokens, tokens});
  }
  return found;
}

verify::DataMoments RotationSubject::take(const Statistics& statistics, std::vector<Check>& checks) const {
  return {verify::covariances_of(*this, statistics, checks), {}};
}

void RotationSubject::check_on(const verify::DataMoments& data, std::vector<Check>& checks) const {
  verify::check_decomposition_on_data(*this, data.covariances, checks);
}

VerifyThresholds RotationSubject::default_limits() const { return verify::int2_thresholds(); }

}  // namespace oscar
