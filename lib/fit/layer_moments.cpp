// SPDX-License-Identifier: MIT
#include "fit/layer_moments.hpp"

#include <algorithm>

#include "base/errors.hpp"

namespace oscar {
namespace {

bool any(const std::vector<Recipe>& recipes, const std::function<bool(const Recipe&)>& wants) {
  return std::any_of(recipes.begin(), recipes.end(), wants);
}

/// Those that look at data at all.
std::vector<Recipe> without_hadamard(std::vector<Recipe> recipes) {
  std::erase_if(recipes, [](const Recipe& r) { return r.kind == Recipe::Kind::kHadamard; });
  return recipes;
}

const MatrixStack& reference_of(const std::vector<std::pair<int, SideTransform>>& layers, int layer_id) {
  for (const auto& [id, side] : layers) {
    if (id == layer_id) return side.rotation;
  }
  throw DataError("the reference rotation has no layer " + std::to_string(layer_id), "--reference-rotation",
                  "give a reference that covers every layer, or choose --layers");
}

}  // namespace

MatrixStack output_metric(const Tensor& projection, int kv_heads, Backend& backend) {
  const HeadsView rows = heads_view(projection, "o_proj");  // (Hq, d) as those of queries
  MatrixStack metric(kv_heads, rows.head_dim);
  backend.accumulate_grams(std::vector<HeadsView>{rows}, metric);
  for (double& value : metric.data) value *= static_cast<double>(kv_heads) / rows.num_heads;
  return metric;
}

std::set<std::string> needed_sums(const std::vector<Recipe>& recipes) {
  std::set<std::string> names;
  for (const Recipe& recipe : without_hadamard(recipes)) {
    names.insert(recipe.key_objective);
    names.insert(recipe.stretches_values() ? "vtv" : recipe.value_objective);
    if (recipe.value_objective == "sst") names.insert("qqt");
    if (recipe.kind == Recipe::Kind::kStretch && recipe.key_objective == "qqt") names.insert("ktk");
    if (recipe.center) names.insert("keys");
  }
  return names;
}

AdditiveMoments take_sums(LayerStream& layer, const std::vector<Recipe>& recipes, Backend& backend) {
  const std::set<std::string> names = needed_sums(recipes);
  AdditiveMoments out;
  if (names.contains("qqt")) out.sums["qqt"] = query_moments(layer, backend);
  if (names.contains("ktk")) out.sums["ktk"] = plain_moments(layer, Side::kKey, backend);
  if (names.contains("fisher")) out.fisher = fisher_sums(layer, recipes.front().windows, backend);
  if (names.contains("keys")) out.keys = key_sums(layer, backend);
  if (names.contains("oto")) out.sums["oto"] = output_moments(layer, backend);
  if (names.contains("vtv")) out.sums["vtv"] = plain_moments(layer, Side::kValue, backend);
  return out;
}

LayerMoments moments_of(int layer_id, int key_dim, int value_dim, const AdditiveMoments& sums, Windows windows) {
  LayerMoments out{.layer_id = layer_id, .key_dim = key_dim, .value_dim = value_dim};
  for (const auto& [name, moments] : sums.sums) out.covariance[name] = moments.mean();
  if (sums.keys) out.key_mean = sums.keys->mean();
  if (!sums.fisher) return out;
  FisherMoments fisher = mean(*sums.fisher, windows);
  out.covariance["fisher"] = std::move(fisher.query);
  out.covariance["fisher_key"] = std::move(fisher.key);
  out.fisher_key_mean = std::move(fisher.key_mean);
  return out;
}

LayerMoments take_moments(int layer_id, LayerStream& layer, const AdditiveMoments& sums,
                          const std::vector<Recipe>& recipes, const ReferenceRotation& reference, Backend& backend,
                          const OutputProjection& output_projection) {
  QkvChunk chunk;
  layer.rewind();
  if (!layer.skip(chunk)) throw DataError("no tokens", "layer " + std::to_string(layer_id), "dump again");
  LayerMoments out = moments_of(layer_id, chunk.view.k.head_dim, chunk.view.v.head_dim, sums, recipes.front().windows);
  chunk = {};
  const std::vector<Recipe> spectral = without_hadamard(recipes);
  if (any(spectral, [](const Recipe& r) { return r.value_objective == "sst"; })) {
    out.covariance["sst"] = score_weighted_value_moments(layer, out.covariance["qqt"], backend).mean();
  }
  if (any(spectral, [](const Recipe& r) { return r.stretches_values(); })) {
    out.covariance["output"] = output_metric(output_projection(layer_id), out.covariance["vtv"].count, backend);
  }
  if (any(spectral, [](const Recipe& r) { return r.kind == Recipe::Kind::kResidual; })) {
    out.covariance["key_residual"] =
        residual_moments(layer, Side::kKey, reference_of(reference.key, layer_id), backend).mean();
    out.covariance["value_residual"] =
        residual_moments(layer, Side::kValue, reference_of(reference.value, layer_id), backend).mean();
  }
  return out;
}

}  // namespace oscar
