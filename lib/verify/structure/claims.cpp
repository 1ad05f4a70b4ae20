// SPDX-License-Identifier: MIT
// What a set says of itself: the files that it lists, the model and the data that it was fitted on, its layers and
// their shapes.
#include <algorithm>
#include <set>

#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "base/threads.hpp"
#include "set/coded_part.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/objective.hpp"

namespace oscar::verify {
namespace {

/// What is wrong with one listed file; empty if nothing is.
std::string defect_of(const fs::path& folder, const Json& entry) {
  const std::string name = entry.value("path", "");
  if (!is_safe_relative_path(name)) return "the manifest lists \"" + name + "\", which leads out of the folder";
  const fs::path file = folder / name;
  if (!fs::is_regular_file(file)) return name + " is missing";
  if (file_size(file) != entry.value("size", std::uint64_t{0}))
    return name + " does not have the size it was written with";
  if (sha256_file(file) != entry.value("sha256", "")) return name + " was changed after it was written";
  return "";
}

void check_config(const RotationSubject& subject, const Expectation& expected, std::vector<Check>& checks) {
  const std::string& fitted = subject.set.model.config_sha256;
  const std::string& measured = expected.model.config_sha256;
  if (fitted.empty() || measured.empty()) {
    checks.push_back({.name = "model_identity",
                      .message = fitted.empty()
                                     ? "the set does not say which model it was fitted on"
                                     : "nothing says which model the set is meant for: give --model or --stats"});
    return;
  }
  const bool same = fitted == measured;
  checks.push_back(
      {.name = "model_identity",
       .ok = same,
       .message = same ? "" : "fitted on another model (" + subject.set.model.id + "): config.json differs"});
}

/// Another commit may hold other weights, or only another README: that cannot be decided here.
void check_revision(const RotationSubject& subject, const Expectation& expected, std::vector<Check>& checks) {
  const std::string& fitted = subject.set.model.revision;
  const std::string& measured = expected.model.revision;
  if (fitted.empty() || measured.empty()) return;
  const bool same = fitted == measured;
  checks.push_back({.name = "model_revision",
                    .ok = same ? std::optional(true) : std::nullopt,
                    .message = same ? ""
                                    : "fitted on commit " + fitted + " of the model, which is now " + measured +
                                          ": the set is stale if the weights changed"});
}

void check_tokens(const RotationSubject& subject, std::vector<Check>& checks) {
  if (!subject.ours || subject.sides.front().layers.empty()) return;
  const auto reads_data = [](const SubjectSide& side) {
    return std::any_of(side.layers.begin(), side.layers.end(),
                       [&](const auto& layer) { return !has_constant_rotation(side, layer.second); });
  };
  if (std::none_of(subject.sides.begin(), subject.sides.end(), reads_data)) return;
  const std::int64_t tokens = subject.set.calibration.tokens;
  const std::int64_t needed =
      std::int64_t{kMinCalibrationTokensPerDim} * subject.sides.front().layers.front().second.rotation.dim;
  std::optional<bool> ok = tokens >= needed;
  std::string message = *ok ? "" : "fitted on too few tokens: directions are those of chance; fit on more text";
  if (tokens == 0) ok = std::nullopt, message = "the set does not say how many tokens it was fitted on";
  checks.push_back(
      {"calibration_tokens", {}, "", static_cast<double>(tokens), static_cast<double>(needed), ok, message});
}

std::set<int> layer_ids(const SubjectSide& side) {
  std::set<int> ids;
  for (const auto& [id, transform] : side.layers) ids.insert(id);
  return ids;
}

/// "0, 1, 5 …": at most eight.
std::string list_text(const std::vector<int>& ids) {
  std::string text;
  for (std::size_t i = 0; i < ids.size() && i < 8; ++i) text += (i == 0 ? "" : ", ") + std::to_string(ids[i]);
  return ids.size() > 8 ? text + " …" : text;
}

std::vector<int> missing_from(const std::set<int>& have, const std::vector<int>& wanted) {
  std::vector<int> missing;
  std::copy_if(wanted.begin(), wanted.end(), std::back_inserter(missing), [&](int id) { return !have.contains(id); });
  return missing;
}

void check_layers(const SubjectSide& side, const Expectation& expected, std::vector<Check>& checks) {
  const std::set<int> have = layer_ids(side);
  const int num_layers = expected.model.num_layers;
  Check check{.name = "layer_coverage", .target = side.target, .value = static_cast<double>(have.size())};
  std::vector<int> wanted = expected.data_layers;
  std::vector<int> of_model = expected.model.cache_layers;
  for (int id = 0; id < num_layers && expected.model.cache_layers.empty(); ++id) of_model.push_back(id);
  wanted.insert(wanted.end(), of_model.begin(), of_model.end());
  const std::vector<int> missing = missing_from(have, wanted);
  if (num_layers == 0) {
    if (!missing.empty()) check.ok = false;
    check.message = !missing.empty() ? "the data has layers that the set lacks: " + list_text(missing)
                                     : "nothing says how many layers the model has: give --model or --stats";
  } else {
    const bool beyond = !have.empty() && *have.rbegin() >= num_layers;
    if (!missing.empty()) check.message = "no rotation for layers " + list_text(missing) + " of " + expected.origin;
    if (beyond) check.message = "layer " + std::to_string(*have.rbegin()) + " does not exist by " + expected.origin;
    check.limit = static_cast<double>(of_model.size());
    check.ok = check.message.empty();
  }
  checks.push_back(std::move(check));
}

void check_sides_agree(const RotationSubject& subject, std::vector<Check>& checks) {
  if (subject.sides.size() != 2) {
    checks.push_back({.name = "sides_agree", .message = "only one side is given: verify the folder that has both"});
    return;
  }
  const bool same = layer_ids(subject.sides[0]) == layer_ids(subject.sides[1]);
  checks.push_back(
      {.name = "sides_agree", .ok = same, .message = same ? "" : "keys and values do not cover the same layers"});
}

/// "qqt" on the value side is a swapped pair of files.
void check_objective(const SubjectSide& side, std::vector<Check>& checks) {
  const bool key = fits_keys(side.objective);
  const bool value = fits_values(side.objective);
  std::optional<bool> ok;
  std::string message = "the objective \"" + side.objective + "\" does not tell the side";
  if ((key || value) && !side.target.empty()) {
    ok = key == (side.target == "key");
    message = *ok ? "" : "\"" + side.objective + "\" is fitted for the other side: keys and values are swapped";
  }
  checks.push_back({.name = "objective_side", .target = side.target, .ok = ok, .message = message});
}

void check_shape(const SubjectSide& side, int layer, const SideTransform& t, const ModelIdentity& model,
                 std::vector<Check>& out) {
  const auto dim = static_cast<double>(t.rotation.dim);
  const int expected = side.target == "value" && model.value_dim > 0 ? model.value_dim : model.head_dim;
  const bool values_fit =
      t.eigenvalues.empty() || t.eigenvalues.size() == static_cast<std::size_t>(t.rotation.count) * t.rotation.dim;
  std::string message;
  if (!values_fit) message = "the number of eigenvalues is not that of the matrix";
  if (expected > 0 && t.rotation.dim != expected) {
    message = "the model's head_dim is " + std::to_string(expected);
  }
  if (model.num_key_value_heads > 0 && t.rotation.count != 1 && t.rotation.count != model.num_key_value_heads) {
    message = "the model has " + plural(model.num_key_value_heads, "key-value head");
  }
  std::optional<bool> ok = message.empty();
  if (message.empty() && expected == 0) {
    ok = std::nullopt;
    message = "nothing says what head_dim the model has: give --model, --dump or --stats";
  }
  out.push_back(
      {"shape", layer, side.target, dim, expected > 0 ? std::optional<double>(expected) : std::nullopt, ok, message});
}

/// Servers refuse groups that do not divide a row.
void check_group(const RotationSubject& subject, std::vector<Check>& checks) {
  if (!subject.ours) return;
  const int group = subject.set.key_codec.group_size;
  const auto cut = [&](const auto& layer) { return group > 0 && layer.second.rotation.dim % group != 0; };
  std::optional<int> where;
  for (const SubjectSide& side : subject.sides) {
    const auto found = std::find_if(side.layers.begin(), side.layers.end(), cut);
    if (found != side.layers.end() && !where) where = found->first;
  }
  const std::string message = where ? "groups of " + plural(group, "channel") + " do not divide head_dim" : "";
  checks.push_back({"group_size", where, "", group, {}, !where, message});
}

void check_clip(const RotationSubject& subject, std::vector<Check>& checks) {
  if (!subject.set.has_clip_ratios) {
    checks.push_back({.name = "clip_ratio", .message = "the files do not say how rows are clipped"});
    return;
  }
  const int heads = subject.set.model.num_key_value_heads;
  for_each_side(
      subject, checks, [&](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
        std::vector<double> ratios = t.head_clip_ratios;
        const bool fit_heads = ratios.empty() || heads == 0 || ratios.size() == static_cast<std::size_t>(heads);
        ratios.push_back(t.clip_ratio);
        const auto [low, high] = std::minmax_element(ratios.begin(), ratios.end());
        const bool in_range = *low >= 0 && *high <= 1;
        const std::string message = !in_range    ? "a clip ratio lies in 0..1"
                                    : !fit_heads ? "the number of clip ratios is not that of the heads"
                                                 : "";
        out.push_back({"clip_ratio", layer, side.target, in_range ? t.clip_ratio : (*low < 0 ? *low : *high), 1.0,
                       message.empty(), message});
      });
}

}  // namespace

void check_file_hashes(const std::filesystem::path& path, std::vector<Check>& checks) {
  const fs::path manifest_path = path / "manifest.json";
  if (!fs::is_directory(path) || !fs::exists(manifest_path)) {
    checks.push_back({.name = "file_hashes", .message = "there is no manifest that lists hashes"});
    return;
  }
  const Json manifest = read_json(manifest_path);
  validate_json(manifest, is_coded_set(path) ? kCodedSchema : "oscar.rotation_set.v1", manifest_path.string());
  const Json& files = manifest.at("files");
  std::vector<std::string> found(files.size());
  parallel_for(found.size(), [&](std::size_t i) { found[i] = defect_of(path, files[i]); });
  std::string defects;
  double bad = 0;
  for (const std::string& defect : found) {
    if (defect.empty()) continue;
    bad += 1;
    defects += (defects.empty() ? "" : "; ") + defect;
  }
  if (bad > 0) defects += ": pull or fit the set again";
  checks.push_back({"file_hashes", {}, "", bad, 0.0, bad == 0, defects});
}

void check_provenance(const RotationSubject& subject, const Expectation& expected, std::vector<Check>& checks) {
  check_config(subject, expected, checks);
  check_revision(subject, expected, checks);
  check_tokens(subject, checks);
}

void check_coverage(const RotationSubject& subject, const Expectation& expected, std::vector<Check>& checks) {
  check_sides_agree(subject, checks);
  for (const SubjectSide& side : subject.sides) {
    check_layers(side, expected, checks);
    check_objective(side, checks);
  }
  for_each_side(subject, checks,
                [&](const SubjectSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
                  check_shape(side, layer, t, expected.model, out);
                });
  check_group(subject, checks);
  check_clip(subject, checks);
}

}  // namespace oscar::verify
