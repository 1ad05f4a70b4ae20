// SPDX-License-Identifier: MIT
#include "method/solve.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.hpp"
#include "method/spectrum.hpp"
#include "method/stretch.hpp"

namespace oscar {
namespace {

/// Largest share of the logits' energy that bfloat16 copies of a stretch may make by themselves.
constexpr double kMostDisturbance = 1e-3;
constexpr double kMostLambda = 1;

/// One matrix per head, or their mean.
MatrixStack of_heads(const LayerMoments& layer, Moment moment, bool per_head) {
  const MatrixStack& covariance = layer.covariance.at(moment);
  return per_head ? covariance : mean_over_heads(covariance);
}

SideTransform side_from(const MatrixStack& covariance, const std::vector<Spectrum>& spectra, MatrixStack rotation) {
  SideTransform side;
  side.rotation = rounded_to_f32(std::move(rotation));
  for (const Spectrum& spectrum : spectra) {
    side.eigenvalues.insert(side.eigenvalues.end(), spectrum.values.begin(), spectrum.values.end());
  }
  side.eigenvalues = rounded_to_f32(std::move(side.eigenvalues));
  side.covariance = rounded_to_f32(covariance);
  return side;
}

SideTransform hadamard_side(int dim) {
  SideTransform side;
  side.rotation = rounded_to_f32(hadamard_rotation(dim));
  side.eigenvalues.assign(static_cast<std::size_t>(dim), 1.0);
  return side;
}

/// Rotations by the spectra of one covariance of each layer.
std::vector<SideTransform> rotated_sides(LayersMoments layers, Moment moment, bool per_head, Composition composition,
                                         Backend& backend) {
  std::vector<MatrixStack> covariances;
  for (const LayerMoments* layer : layers) covariances.push_back(of_heads(*layer, moment, per_head));
  std::vector<const MatrixStack*> problems;
  for (const MatrixStack& covariance : covariances) problems.push_back(&covariance);
  const auto spectra = decompose(problems, backend);
  std::vector<SideTransform> sides;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    sides.push_back(side_from(covariances[i], spectra[i], compose(spectra[i], composition)));
  }
  return sides;
}

/// The covariances that a stretch weighs against each other.
struct KeysAndQueries {
  MatrixStack key, query;
};

KeysAndQueries stretch_covariances(const LayerMoments& layer, const Recipe& recipe) {
  const bool fisher = recipe.key_objective == Moment::kFisher;
  MatrixStack key = layer.covariance.at(fisher ? Moment::kFisherKey : Moment::kKtk);
  if (recipe.center) key = centred(std::move(key), fisher ? layer.fisher_key_mean : layer.key_mean, layer.key_mean);
  MatrixStack query = layer.covariance.at(recipe.key_objective);
  if (recipe.key_per_head) return {std::move(key), std::move(query)};
  return {mean_over_heads(key), mean_over_heads(query)};
}

double worst(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

SideTransform side_from(Stretched stretched, const KeysAndQueries& covariances, const StretchOptions& options) {
  SideTransform side;
  side.covariance = rounded_to_f32(covariances.key);
  side.query_covariance = rounded_to_f32(covariances.query);
  static_cast<Transform&>(side) = std::move(stretched.transform);
  side.eigenvalues = rounded_to_f32(std::move(stretched.eigenvalues));
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

std::vector<SideTransform> stretched_keys(LayersMoments layers, const Recipe& recipe, Backend& backend,
                                          Status& status) {
  std::vector<KeysAndQueries> covariances;
  for (const LayerMoments* layer : layers) covariances.push_back(stretch_covariances(*layer, recipe));
  std::vector<StretchProblem> problems;
  for (const KeysAndQueries& each : covariances) problems.push_back({&each.key, &each.query});
  const StretchOptions options{
      .power = recipe.stretch_power, .lambda = recipe.stretch_lambda, .composition = recipe.composition};
  std::vector<Stretched> stretched = stretch(problems, options, backend);
  std::vector<SideTransform> sides;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool good = worst(stretched[i].bf16_disturbance) <= kMostDisturbance;
    sides.push_back(good ? side_from(std::move(stretched[i]), covariances[i], options)
                         : regularised_side(*layers[i], covariances[i], recipe, options, backend, status));
  }
  return sides;
}

}  // namespace

std::string Recipe::key_name() const {
  if (kind == Kind::kHadamard) return "hadamard";
  return fmt::format("{}{}_{}", kind == Kind::kStretch ? "stretch_" : "", name_of(key_objective), name_of(composition));
}

std::string Recipe::value_name() const {
  return kind == Kind::kHadamard ? "hadamard" : fmt::format("sst_{}", name_of(composition));
}

std::set<Moment> Recipe::moments() const {
  if (kind == Kind::kHadamard) return {};
  std::set<Moment> wanted{key_objective, Moment::kSst, Moment::kQqt};
  if (kind == Kind::kStretch && key_objective == Moment::kQqt) wanted.insert(Moment::kKtk);
  if (center) wanted.insert(Moment::kKeys);
  return wanted;
}

std::vector<LayerRotation> solve(LayersMoments layers, const Recipe& recipe, Backend& backend, Status& status) {
  std::vector<LayerRotation> fitted;
  if (recipe.kind == Recipe::Kind::kHadamard) {
    for (const LayerMoments* layer : layers) {
      fitted.push_back({layer->layer_id, hadamard_side(layer->key_dim), hadamard_side(layer->value_dim)});
    }
    return fitted;
  }
  std::vector<SideTransform> keys =
      recipe.kind == Recipe::Kind::kStretch
          ? stretched_keys(layers, recipe, backend, status)
          : rotated_sides(layers, recipe.key_objective, recipe.key_per_head, recipe.composition, backend);
  std::vector<SideTransform> values =
      rotated_sides(layers, Moment::kSst, recipe.value_per_head, recipe.composition, backend);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    fitted.push_back({layers[i]->layer_id, std::move(keys[i]), std::move(values[i])});
    if (!recipe.center) continue;
    fitted.back().key.mean = rounded_to_f32(layers[i]->key_mean);
  }
  return fitted;
}

}  // namespace oscar
