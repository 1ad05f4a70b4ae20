// SPDX-License-Identifier: MIT
#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "verify/structure/checks.hpp"
#include "verify/structure/for_each_side.hpp"
#include "verify/structure/objective.hpp"

namespace oscar::verify {
namespace {

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
  const auto count = static_cast<double>(have.size());
  const int num_layers = expected.model.num_layers;
  std::vector<int> wanted = expected.data_layers;
  std::vector<int> of_model = expected.model.cache_layers;
  for (int id = 0; id < num_layers && expected.model.cache_layers.empty(); ++id) of_model.push_back(id);
  wanted.insert(wanted.end(), of_model.begin(), of_model.end());
  if (num_layers == 0) {
    const std::vector<int> missing = missing_from(have, wanted);
    const bool failed = !missing.empty();
    checks.push_back({"layer_coverage",
                      {},
                      side.target,
                      count,
                      {},
                      failed ? std::optional<bool>(false) : std::nullopt,
                      failed ? "the data has layers that the set lacks: " + list_text(missing)
                             : "nothing says how many layers the model has: give --model or --stats"});
    return;
  }
  const std::vector<int> missing = missing_from(have, wanted);
  const bool beyond = !have.empty() && *have.rbegin() >= num_layers;
  std::string message;
  if (!missing.empty()) message = "no rotation for layers " + list_text(missing) + " of " + expected.origin;
  if (beyond) message = "layer " + std::to_string(*have.rbegin()) + " does not exist by " + expected.origin;
  checks.push_back(
      {"layer_coverage", {}, side.target, count, static_cast<double>(of_model.size()), message.empty(), message});
}

void check_sides_agree(const Subject& subject, std::vector<Check>& checks) {
  if (subject.sides.size() != 2) {
    checks.push_back({"sides_agree", {}, "", {}, {}, {}, "only one side is given: verify the folder that has both"});
    return;
  }
  const bool same = layer_ids(subject.sides[0]) == layer_ids(subject.sides[1]);
  checks.push_back({"sides_agree", {}, "", {}, {}, same, same ? "" : "keys and values do not cover the same layers"});
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
  checks.push_back({"objective_side", {}, side.target, {}, {}, ok, message});
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
void check_group(const Subject& subject, std::vector<Check>& checks) {
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

void check_clip(const Subject& subject, std::vector<Check>& checks) {
  if (!subject.set.has_clip_ratios) {
    checks.push_back({"clip_ratio", {}, "", {}, {}, {}, "the files do not say how rows are clipped"});
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

void check_coverage(const Subject& subject, const Expectation& expected, std::vector<Check>& checks) {
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
