// SPDX-License-Identifier: MIT
#include "fit/layer_fit.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/errors.hpp"
#include "spectral/spectrum.hpp"
#include "stats/moments.hpp"
#include "transform/compose.hpp"
#include "transform/stretch.hpp"

namespace oscar {
namespace {

/// Largest share of the logits' energy that bfloat16 copies of a stretch may make by themselves.
constexpr double kMostDisturbance = 1e-3;
constexpr double kMostLambda = 1;

MatrixStack rounded_to_f32(MatrixStack stack) {
  for (double& value : stack.data) value = static_cast<double>(static_cast<float>(value));
  return stack;
}

bool any(const std::vector<Recipe>& recipes, const std::function<bool(const Recipe&)>& wants) {
  return std::any_of(recipes.begin(), recipes.end(), wants);
}

const MatrixStack& reference_of(const std::vector<std::pair<int, SideTransform>>& layers, int layer_id) {
  for (const auto& [id, side] : layers) {
    if (id == layer_id) return side.rotation;
  }
  throw DataError("the reference rotation has no layer " + std::to_string(layer_id), "--reference-rotation",
                  "give a reference that covers every layer, or choose --layers");
}

/// One matrix per head, or their mean.
MatrixStack of_heads(const LayerMoments& layer, const std::string& name, bool per_head) {
  const MatrixStack& covariance = layer.covariance.at(name);
  return per_head ? covariance : mean_over_heads(covariance);
}

SideTransform side_from(const MatrixStack& covariance, const std::vector<Spectrum>& spectra, MatrixStack rotation) {
  SideTransform side;
  side.rotation = rounded_to_f32(std::move(rotation));
  for (const Spectrum& spectrum : spectra) {
    side.eigenvalues.insert(side.eigenvalues.end(), spectrum.values.begin(), spectrum.values.end());
  }
  side.covariance = rounded_to_f32(covariance);
  return side;
}

SideTransform hadamard_side(int dim) {
  SideTransform side;
  side.rotation = rounded_to_f32(hadamard_rotation(dim));
  side.eigenvalues.assign(static_cast<std::size_t>(dim), 1.0);
  return side;
}

/// Rotations by the spectra of one named covariance of each layer.
std::vector<SideTransform> rotated_sides(const std::vector<LayerMoments>& layers, const std::string& name,
                                         bool per_head, const Recipe& recipe, Backend& backend) {
  std::vector<MatrixStack> covariances;
  for (const LayerMoments& layer : layers) covariances.push_back(of_heads(layer, name, per_head));
  std::vector<const MatrixStack*> problems;
  for (const MatrixStack& covariance : covariances) problems.push_back(&covariance);
  const auto spectra = decompose(problems, backend);
  std::vector<SideTransform> sides;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    sides.push_back(
        side_from(covariances[i], spectra[i], compose(spectra[i], composition_from_name(recipe.composition))));
  }
  return sides;
}

std::vector<SideTransform> residual_sides(const std::vector<LayerMoments>& layers, const std::string& name,
                                          const std::string& residual, bool per_head, Backend& backend) {
  std::vector<MatrixStack> covariances;
  for (const LayerMoments& layer : layers) {
    covariances.push_back(of_heads(layer, name, per_head));
    covariances.push_back(of_heads(layer, residual, per_head));
  }
  std::vector<const MatrixStack*> problems;
  for (const MatrixStack& covariance : covariances) problems.push_back(&covariance);
  const auto spectra = decompose(problems, backend);
  std::vector<SideTransform> sides;
  for (std::size_t i = 0; i < spectra.size(); i += 2) {
    sides.push_back(side_from(covariances[i], spectra[i], residual_rotation(spectra[i + 1], spectra[i])));
  }
  return sides;
}

/// The covariances that a stretch weighs against each other.
struct KeysAndQueries {
  MatrixStack key, query;  // or values, and what their errors do behind W_O
};

KeysAndQueries stretch_covariances(const LayerMoments& layer, const Recipe& recipe) {
  const bool fisher = recipe.key_objective == "fisher";
  MatrixStack key = layer.covariance.at(fisher ? "fisher_key" : "ktk");
  if (recipe.center) key = centred(std::move(key), fisher ? layer.fisher_key_mean : layer.key_mean, layer.key_mean);
  MatrixStack query = layer.covariance.at(recipe.key_objective);
  if (recipe.key_per_head) return {std::move(key), std::move(query)};
  return {mean_over_heads(key), mean_over_heads(query)};
}

KeysAndQueries output_covariances(const LayerMoments& layer, const Recipe& recipe) {
  return {of_heads(layer, "vtv", recipe.value_per_head), of_heads(layer, "output", recipe.value_per_head)};
}

double worst(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

SideTransform side_from(Stretched stretched, const KeysAndQueries& covariances, const StretchOptions& options) {
  SideTransform side;
  side.covariance = rounded_to_f32(covariances.key);
  side.query_covariance = rounded_to_f32(covariances.query);
  static_cast<Transform&>(side) = std::move(stretched.transform);
  side.eigenvalues = std::move(stretched.eigenvalues);
  side.scores["stretch"] = {{"predicted_gain", stretched.predicted_gain},
                            {"condition", stretched.condition},
                            {"bf16_disturbance", stretched.bf16_disturbance},
                            {"power", options.power},
                            {"lambda", options.lambda}};
  return side;
}

/// Again, for one layer, until bfloat16 copies of the matrices are good enough.
SideTransform regularised_side(const LayerMoments& layer, const KeysAndQueries& covariances, const Recipe& recipe,
                               StretchOptions options, Backend& backend, Status& status) {
  while (options.lambda * 10 <= kMostLambda) {
    options.lambda *= 10;
    Stretched stretched = std::move(stretch({{&covariances.key, &covariances.query}}, options, backend).front());
    if (worst(stretched.bf16_disturbance) > kMostDisturbance) continue;
    status.notice(
        fmt::format("layer {}: the stretch is regularised with lambda {} instead of {}, or bfloat16 would "
                    "spoil it",
                    layer.layer_id, options.lambda, recipe.stretch_lambda));
    return side_from(std::move(stretched), covariances, options);
  }
  throw NumericalError("the metric of the stretch is so ill-conditioned that bfloat16 copies disturb the logits",
                       "layer " + std::to_string(layer.layer_id), "use --recipe oscar, or leave the layer out");
}

template <class CovariancesOf>
std::vector<SideTransform> stretched_sides(const std::vector<LayerMoments>& layers, const CovariancesOf& covariances_of,
                                           const Recipe& recipe, Backend& backend, Status& status) {
  std::vector<KeysAndQueries> covariances;
  for (const LayerMoments& layer : layers) covariances.push_back(covariances_of(layer, recipe));
  std::vector<StretchProblem> problems;
  for (const KeysAndQueries& each : covariances) problems.push_back({&each.key, &each.query});
  const StretchOptions options{.power = recipe.stretch_power,
                               .lambda = recipe.stretch_lambda,
                               .composition = composition_from_name(recipe.composition)};
  std::vector<Stretched> stretched = stretch(problems, options, backend);
  std::vector<SideTransform> sides;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool good = worst(stretched[i].bf16_disturbance) <= kMostDisturbance;
    sides.push_back(good ? side_from(std::move(stretched[i]), covariances[i], options)
                         : regularised_side(layers[i], covariances[i], recipe, options, backend, status));
  }
  return sides;
}

std::vector<SideTransform> key_sides(const std::vector<LayerMoments>& layers, const Recipe& recipe, Backend& backend,
                                     Status& status) {
  const bool per_head = recipe.key_per_head;
  if (recipe.kind == Recipe::Kind::kStretch) {
    return stretched_sides(layers, stretch_covariances, recipe, backend, status);
  }
  if (recipe.kind == Recipe::Kind::kResidual) {
    return residual_sides(layers, recipe.key_objective, "key_residual", per_head, backend);
  }
  return rotated_sides(layers, recipe.key_objective, per_head, recipe, backend);
}

std::vector<SideTransform> value_sides(const std::vector<LayerMoments>& layers, const Recipe& recipe, Backend& backend,
                                       Status& status) {
  const bool per_head = recipe.value_per_head;
  if (recipe.stretches_values()) return stretched_sides(layers, output_covariances, recipe, backend, status);
  if (recipe.kind == Recipe::Kind::kResidual) {
    return residual_sides(layers, recipe.value_objective, "value_residual", per_head, backend);
  }
  return rotated_sides(layers, recipe.value_objective, per_head, recipe, backend);
}

void take_key_moments(LayerStream& layer, const std::vector<Recipe>& recipes, Backend& backend, LayerMoments& out) {
  const auto stretches = [](const Recipe& r) { return r.kind == Recipe::Kind::kStretch; };
  const auto by = [&](const char* objective) {
    return any(recipes, [&](const Recipe& r) { return r.key_objective == objective; });
  };
  if (by("qqt") || any(recipes, [](const Recipe& r) { return r.value_objective == "sst"; })) {
    out.covariance["qqt"] = query_moments(layer, backend).mean();
  }
  if (by("ktk") || any(recipes, [&](const Recipe& r) { return stretches(r) && r.key_objective == "qqt"; })) {
    out.covariance["ktk"] = plain_moments(layer, Side::kKey, backend).mean();
  }
  if (by("fisher")) {
    FisherMoments fisher = fisher_moments(layer, recipes.front().windows, backend);
    out.covariance["fisher"] = std::move(fisher.query);
    out.covariance["fisher_key"] = std::move(fisher.key);
    out.fisher_key_mean = std::move(fisher.key_mean);
  }
  if (any(recipes, [](const Recipe& r) { return r.center; })) out.key_mean = mean_keys(layer);
}

/// Rows of W_O are (Hq, d), as those of queries.
MatrixStack output_metric(const Tensor& projection, int kv_heads, Backend& backend) {
  const HeadsView rows = heads_view(projection, "o_proj");
  MatrixStack metric(kv_heads, rows.head_dim);
  backend.accumulate_grams(std::vector<HeadsView>{rows}, metric);
  for (double& value : metric.data) value *= static_cast<double>(kv_heads) / rows.num_heads;
  return metric;
}

void take_value_moments(LayerStream& layer, const std::vector<Recipe>& recipes, Backend& backend, LayerMoments& out) {
  const auto by = [&](const char* objective) {
    return any(recipes, [&](const Recipe& r) { return r.value_objective == objective; });
  };
  if (by("sst")) {
    out.covariance["sst"] = score_weighted_value_moments(layer, out.covariance["qqt"], backend).mean();
  }
  if (by("oto")) out.covariance["oto"] = output_moments(layer, backend).mean();
  if (by("vtv") || by("output")) out.covariance["vtv"] = plain_moments(layer, Side::kValue, backend).mean();
}

}  // namespace

LayerMoments take_moments(int layer_id, LayerStream& layer, const std::vector<Recipe>& recipes,
                          const ReferenceRotation& reference, Backend& backend,
                          const OutputProjection& output_projection) {
  QkvChunk chunk;
  layer.rewind();
  if (!layer.next(chunk)) throw DataError("no tokens", "layer " + std::to_string(layer_id), "dump again");
  LayerMoments out{.layer_id = layer_id, .key_dim = chunk.view.k.head_dim, .value_dim = chunk.view.v.head_dim};
  chunk = {};
  std::vector<Recipe> spectral = recipes;
  std::erase_if(spectral, [](const Recipe& r) { return r.kind == Recipe::Kind::kHadamard; });
  if (spectral.empty()) return out;
  take_key_moments(layer, spectral, backend, out);
  take_value_moments(layer, spectral, backend, out);
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

std::vector<LayerRotation> fit_transforms(const std::vector<LayerMoments>& layers, const Recipe& recipe,
                                          Backend& backend, Status& status) {
  std::vector<LayerRotation> fitted;
  if (recipe.kind == Recipe::Kind::kHadamard) {
    for (const LayerMoments& layer : layers) {
      fitted.push_back({layer.layer_id, hadamard_side(layer.key_dim), hadamard_side(layer.value_dim)});
    }
    return fitted;
  }
  std::vector<SideTransform> keys = key_sides(layers, recipe, backend, status);
  std::vector<SideTransform> values = value_sides(layers, recipe, backend, status);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    fitted.push_back({layers[i].layer_id, std::move(keys[i]), std::move(values[i])});
    if (!recipe.center) continue;
    for (const double mean : layers[i].key_mean) {
      fitted.back().key.mean.push_back(static_cast<double>(static_cast<float>(mean)));
    }
  }
  return fitted;
}

}  // namespace oscar
