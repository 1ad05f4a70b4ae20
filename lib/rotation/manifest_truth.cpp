// SPDX-License-Identifier: MIT
#include "rotation/manifest_truth.hpp"

#include <cmath>
#include <set>

#include "rotation/manifest.hpp"

namespace oscar {
namespace {

using Clauses = std::vector<std::string>;

/// Rounding of logarithms, and of sums in another order, stays far below this.
constexpr double kSummaryTolerance = 1e-5;

bool same_summary(const Json& told, const Json& made) {
  if (told.is_null() || made.is_null()) return told.is_null() == made.is_null();
  const double scale = std::max(std::abs(made["max"].get<double>()), std::abs(made["min"].get<double>()));
  const auto near = [&](const char* name, double size) {
    return std::abs(told.at(name).get<double>() - made.at(name).get<double>()) <= kSummaryTolerance * size;
  };
  return near("min", scale) && near("max", scale) && near("mean", scale) &&
         near("effective_rank", made["effective_rank"].get<double>());
}

void compare_side(const SideTransform& side, const ModelIdentity& model, int dim, const Json& told,
                  const std::string& where, Clauses& out) {
  const auto heads = static_cast<std::size_t>(model.num_key_value_heads);
  const auto fits = [&](std::size_t count) { return count <= 1 || heads == 0 || count == heads; };
  if (!fits(static_cast<std::size_t>(side.rotation.count))) out.push_back(where + "matrices are not one for each head");
  if (!side.head_clip_ratios.empty() && heads > 0 && side.head_clip_ratios.size() != heads) {
    out.push_back(where + "clip ratios are not one for each head");
  }
  if (dim > 0 && side.rotation.dim != dim) {
    out.push_back(where + "the manifest says head_dim " + std::to_string(dim) + ", the matrix has " +
                  std::to_string(side.rotation.dim));
  }
  if (!same_summary(told.value("eigenvalues", Json()), summarize_spectrum(side))) {
    out.push_back(where + "the eigenvalue summary is not that of the eigenvalues");
  }
}

/// The recipe repeats what the codec is.
void compare_recipe(const Json& manifest, Clauses& out) {
  const Json &recipe = manifest["recipe"], &codec = manifest["codec"];
  for (const auto& [own, other] : {std::pair{"codec", "name"}, {"levels", "levels"}, {"group_size", "group_size"}}) {
    if (recipe.contains(own) && recipe[own] != codec[other]) {
      out.push_back(std::string("manifest.json: recipe and codec have different values of ") + own);
    }
  }
}

}  // namespace

std::vector<std::string> manifest_disagreements(const RotationSet& set) {
  Clauses out;
  const ModelIdentity& model = set.model;
  const std::set<int> cached(model.cache_layers.begin(), model.cache_layers.end());
  for (std::size_t i = 0; i < set.layers.size(); ++i) {
    const LayerRotation& layer = set.layers[i];
    const Json& told = set.manifest["layers"][i];
    const std::string where = "manifest.json: layer " + std::to_string(layer.layer_id) + ": ";
    if (i > 0 && layer.layer_id <= set.layers[i - 1].layer_id) {
      out.push_back(where + "layers are not in ascending order, each once");
    }
    if (model.num_layers > 0 && layer.layer_id >= model.num_layers) {
      out.push_back(where + "the model has " + std::to_string(model.num_layers) + " layers");
    } else if (!cached.empty() && !cached.contains(layer.layer_id)) {
      out.push_back(where + "the model has no cache there");
    }
    if (told["head_dim"] != layer.key.rotation.dim) out.push_back(where + "head_dim is not that of the matrix");
    const int value_dim = model.value_dim > 0 ? model.value_dim : model.head_dim;
    compare_side(layer.key, model, model.head_dim, told["key"], where + "keys: ", out);
    compare_side(layer.value, model, value_dim, told["value"], where + "values: ", out);
  }
  compare_recipe(set.manifest, out);
  return out;
}

}  // namespace oscar
