// SPDX-License-Identifier: MIT
// Rotations before the judge: what their objectives, groups and clip ratios say; what data says of their directions.
#include <algorithm>
#include <optional>

#include "base/text.hpp"
#include "measure/kv_method.hpp"
#include "verify/structure/objective.hpp"
#include "verify/structure/subject.hpp"
#include "verify/verdict/verdict.hpp"

namespace oscar::verify {
namespace {

/// A lone file says which side it is by its name, or by an objective that only one side has.
std::string lone_target(const fs::path& path, const std::string& objective) {
  const std::string name = path.filename().string();
  if (name.starts_with("k_")) return "key";
  if (name.starts_with("v_")) return "value";
  if (fits_keys(objective)) return "key";
  return fits_values(objective) ? "value" : "";
}

/// "qqt" on the value side is a swapped pair of files.
void check_objective(const RotationSide& side, std::vector<Check>& checks) {
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

/// Servers refuse groups that do not divide a row.
void check_group(const RotationSides& sides, int group, std::vector<Check>& checks) {
  std::optional<int> where;
  for (const RotationSide& side : sides) {
    const auto cut = [&](const LayerSide& layer) { return group > 0 && layer.transform.rotation.dim % group != 0; };
    const auto found = std::ranges::find_if(side.layers, cut);
    if (found != side.layers.end() && !where) where = found->layer_id;
  }
  const std::string message = where ? "groups of " + plural(group, "channel") + " do not divide head_dim" : "";
  checks.push_back({"group_size", where, "", group, {}, !where, message});
}

void check_clip(const RotationSides& sides, const RotationPart& part, std::vector<Check>& checks) {
  if (!part.has_clip_ratios) {
    checks.push_back({.name = "clip_ratio", .message = "the files do not say how rows are clipped"});
    return;
  }
  for_each_side(sides, checks,
                [&](const RotationSide& side, int layer, const SideTransform& t, std::vector<Check>& out) {
                  std::vector<double> ratios = t.head_clip_ratios;
                  ratios.push_back(t.clip_ratio);
                  const auto bad = std::ranges::find_if_not(ratios, [](double r) { return 0 <= r && r <= 1; });
                  const bool ok = bad == ratios.end();
                  out.push_back({"clip_ratio", layer, side.target, ok ? t.clip_ratio : *bad, 1.0, ok,
                                 ok ? "" : "a clip ratio lies in 0..1"});
                });
}

std::vector<double> clips_of(const SideTransform& side) {
  return side.head_clip_ratios.empty() ? std::vector<double>{side.clip_ratio} : side.head_clip_ratios;
}

struct RotationSubject final : Subject {
  RotationPart part;
  RotationSides rotations;  // refer to the part

  RotationSubject(const std::string& of_set, RotationPart taken) : part(std::move(taken)), rotations(sides_of(part)) {
    name = of_set;
    if (part.has_clip_ratios) return;
    caveats.emplace_back(
        "the set does not say its clip ratios: measured with the published 0.96 for keys, 0.92 for values");
  }
  RotationSubject(const fs::path& path, RotationFile file) {
    name = kRotationsName;
    for (auto& [id, transform] : file.layers) part.layers.push_back({id, std::move(transform), {}});
    RotationSide& side = rotations.emplace_back(RotationSide{lone_target(path, file.objective), file.objective, {}});
    for (const LayerRotation& layer : part.layers) side.layers.push_back({layer.layer_id, layer.key});
  }

  [[nodiscard]] std::vector<StoredSide> sides() const override {
    std::vector<StoredSide> all;
    for (const RotationSide& side : rotations) {
      for (const auto& [id, t] : side.layers) {
        const std::int64_t ratios = std::ssize(t.head_clip_ratios);
        all.push_back({id, side.target, t, {t.eigenvalues, t.covariance.data, t.query_covariance.data}, ratios});
      }
    }
    return all;
  }
  [[nodiscard]] bool may_share_matrices() const override { return true; }
  [[nodiscard]] bool made_of_data() const override {
    return std::ranges::any_of(rotations, [](const RotationSide& side) {
      return std::ranges::any_of(
          side.layers, [&](const LayerSide& layer) { return !has_constant_rotation(side.objective, layer.transform); });
    });
  }

  void describe(PartReport& report, VerifyReport& whole) const override {
    report.bits = 2;
    report.default_limits = int2_thresholds();
    Json& objectives = report.facts["objectives"] = Json::object();
    for (const RotationSide& side : rotations) {
      objectives[side.target.empty() ? "unknown" : side.target] = side.objective;
      for (const auto& [id, transform] : side.layers) {
        std::vector<double> values = mean_spectrum(transform.eigenvalues, transform.rotation.dim);
        if (!values.empty()) whole.spectra.push_back({name, id, side.target, std::move(values)});
      }
    }
    report.facts["layers"] = part.layers.size();
    report.facts["recipe"] = part.recipe.value("name", "");
    if (!part.has_clip_ratios) return;
    for (const auto& [id, key, value] : part.layers) {
      whole.clips.push_back({name, id, clips_of(key), clips_of(value)});
    }
  }

  void check_own(std::vector<Check>& checks) const override {
    if (rotations.size() < 2) {
      checks.push_back({.name = "sides_agree", .message = "only one side is given: verify the folder that has both"});
    }
    for (const RotationSide& side : rotations) check_objective(side, checks);
    check_group(rotations, part.key_codec.group_size, checks);
    check_clip(rotations, part, checks);
    check_fp8(rotations, checks);
    check_spectrum(rotations, checks);
    check_stretch(rotations, checks);
    check_decomposition(rotations, checks);
  }

  [[nodiscard]] std::optional<KvMethod> method(Windows windows) const override {
    if (rotations.size() < 2) return std::nullopt;
    return method_of(part, windows);
  }
  [[nodiscard]] int group_size() const override { return part.key_codec.group_size; }

  void take(int layer, LayerStream& stream, bool same_tokens, std::int64_t tokens, Backend& backend,
            DataMoments& found) const override {
    // A fit to a model may spread its texts over positions, so that its rows are not those of the tokens alone.
    const bool same_rows = same_tokens && !part.recipe.contains("context");
    for (const RotationSide& side : rotations) {
      take_covariance(layer, side.objective, stream, same_rows, tokens, backend, found);
    }
  }
  void take(const Statistics& statistics, DataMoments& found, std::vector<Check>& checks) const override {
    for (const RotationSide& side : rotations) {
      take_covariances(side, part.calibration.data_sha256, statistics, found, checks);
    }
  }
  void check_on(const DataMoments& data, std::vector<Check>& checks) const override {
    check_decomposition_on_data(rotations, data.covariances, checks);
  }
};

}  // namespace

RotationSides sides_of(const RotationPart& part) {
  RotationSides sides{{"key", part.key_objective, {}}, {"value", part.value_objective, {}}};
  for (const LayerRotation& layer : part.layers) {
    sides[0].layers.push_back({layer.layer_id, layer.key});
    sides[1].layers.push_back({layer.layer_id, layer.value});
  }
  return sides;
}

std::unique_ptr<Subject> make_subject(const std::string& name, RotationPart part) {
  return std::make_unique<RotationSubject>(name, std::move(part));
}

std::unique_ptr<Subject> make_subject(const fs::path& path, RotationFile file) {
  return std::make_unique<RotationSubject>(path, std::move(file));
}

}  // namespace oscar::verify
