// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <string>

#include "base/errors.hpp"
#include "base/status.hpp"
#include "base/threads.hpp"
#include "fit/part_fits.hpp"
#include "method/coded_basis.hpp"
#include "method/coded_side.hpp"
#include "set/set.hpp"

namespace oscar {
namespace {

/// Bits of codes with which damage is measured, the same for every head.
constexpr double kTrialBits = 2;
/// Keys that are nearer to their query are mostly read as they are.
constexpr double kNearestDistance = 256;
/// Errors below this are noise of arithmetic.
constexpr double kLeastDamage = 1e-5;

MatrixStack identity(int count, int dim) {
  MatrixStack stack(count, dim);
  for (int h = 0; h < count; ++h) {
    for (int i = 0; i < dim; ++i) stack[h][static_cast<std::size_t>(i) * static_cast<std::size_t>(dim + 1)] = 1;
  }
  return stack;
}

/// The bases that the data ask for: of keys and of values. Without a cost a key's error counts as the softmax feels it,
/// and a value's by its square.
struct CodedBases {
  CodedBasis key, value;
};

CodedBases bases_of(const LayerStatistics& data, std::int64_t context, Backend& backend) {
  const AdditiveMoments& sums = data.first;
  const FisherSums& fisher = sums.fisher.value();
  const MomentSums &queries = sums.sums.at(Moment::kQqt), &values = sums.sums.at(Moment::kVtv);
  MatrixStack key_cost = data.cost ? data.cost->key : data.rotary ? fisher.base_query : fisher.query;
  if (!data.cost) {
    for (double& entry : key_cost.data) entry *= 1 / queries.total.front();
  }
  const MatrixStack value_cost = data.cost ? data.cost->value : identity(fisher.value.count, fisher.value.dim);
  const double plain_part = data.cost ? kPlainCostPart : kPlainQueryPart;
  CodedBasis key = data.rotary ? coded_pair_basis(key_cost, queries.mean(), plain_part, fisher, *data.rotary,
                                                  {kNearestDistance, static_cast<double>(context), data.cost ? 0.5 : 1})
                               : coded_key_basis(key_cost, queries.mean(), plain_part, fisher, data.centred, backend);
  return {std::move(key), coded_value_basis(value_cost, plain_part, fisher.value, values.mean(), backend)};
}

/// What levels of one side are planned by.
CodedSpectrum spectrum_of(const CodedBasis& basis, int layer_id, const std::string& side, double weight) {
  const MatrixStack& write = basis.transform.rotation;
  return {layer_id, side, write.count, write.dim, basis.lambda, weight};
}

/// The same bits for the keys, and for the values, of every head.
CodedLevels trial_levels(const CodedBasis& basis, int layer_id, const char* side) {
  const CodedSpectrum spectrum = spectrum_of(basis, layer_id, side, 1);
  return plan_levels({&spectrum, 1}, kTrialBits + 16.0 / spectrum.dim, CodedScope::kHead).front();
}

/// The error that codes of a plan are expected to make in a basis, whose variances count as float32.
double expected_error_of(const CodedBasis& basis, const CodedLevels& plan) {
  double error = 0;
  const auto dim = static_cast<std::size_t>(basis.transform.rotation.dim);
  for (std::size_t first = 0; first < plan.order.size(); first += dim) {
    std::vector<double> lambda;
    for (const int channel : std::span(plan.order).subspan(first, dim)) {
      lambda.push_back(static_cast<float>(basis.lambda[first + static_cast<std::size_t>(channel)]));
    }
    error += expected_error(lambda, std::span(plan.levels).subspan(first, dim));
  }
  return error;
}

/// What an error of 1 costs if that of the trial costs `damage`.
double weight_by(double damage, const CodedBasis& basis, int layer_id, const char* side) {
  return std::max(damage, kLeastDamage) / expected_error_of(basis, trial_levels(basis, layer_id, side));
}

/// Ratios weigh layers and sides against each other. Where costs are known, variances have them.
CodedDamage weights_of(const LayerStatistics& layer, const CodedBases& bases) {
  if (!layer.damage) return {1, 1};
  const int id = layer.layer_id;
  return {weight_by(layer.damage->key, bases.key, id, "key"), weight_by(layer.damage->value, bases.value, id, "value")};
}

CodedLayer coded_layer(const LayerStatistics& data, const CodedBases& bases, const CodedLevels& key,
                       const CodedLevels& value) {
  return {data.layer_id, coded_side(bases.key, data.rotary ? data.keys_before_rope : data.key_rows, key),
          coded_side(bases.value, data.value_rows, value)};
}

}  // namespace

std::int64_t context_of(const Json& recipe, const CalibrationData& data) {
  return recipe.value("context", data.tokens / std::max<std::int64_t>(data.sequences, 1));
}

ErrorDamage damage_of(const LayerStatistics& layer, Windows windows, std::int64_t context, const MeasureDamage& measure,
                      Backend& backend) {
  const CodedBases bases = bases_of(layer, context, backend);
  const int id = layer.layer_id;
  CodedPart trial;
  trial.windows = windows;
  trial.layers = {
      coded_layer(layer, bases, trial_levels(bases.key, id, "key"), trial_levels(bases.value, id, "value"))};
  const CodedDamage damage = measure(trial);
  if (std::isfinite(damage.key) && std::isfinite(damage.value)) return {damage.key, damage.value};
  throw NumericalError("what errors cost is not a finite number", "layer " + std::to_string(id),
                       "look at the data of the layer");
}

CodedPart fit_coded(const Statistics& data, double bits, CodedScope scope, Backend& backend) {
  CodedPart set;
  set.model = data.model, set.calibration = calibration_of(data.data), set.windows = data.windows;
  set.scope = name_of(scope), set.recipe = {{"name", kCodedName}};
  set.recipe.update(data.recipe);
  set.recipe.erase("plain_part");  // a constant of this version, which keeps sums of others apart
  std::vector<CodedBases> bases;
  std::vector<CodedDamage> weights;
  std::vector<CodedSpectrum> spectra;  // keys and values of each layer, one after the other
  for (const LayerStatistics& layer : data.layers) {
    throw_if_interrupted();
    bases.push_back(bases_of(layer, context_of(data.recipe, set.calibration), backend));
    weights.push_back(weights_of(layer, bases.back()));
    spectra.push_back(spectrum_of(bases.back().key, layer.layer_id, "key", weights.back().key));
    spectra.push_back(spectrum_of(bases.back().value, layer.layer_id, "value", weights.back().value));
  }
  const std::vector<CodedLevels> plan = plan_levels(spectra, bits, scope);
  set.layers.resize(data.layers.size());
  parallel_for(data.layers.size(), [&](std::size_t i) {
    throw_if_interrupted();
    CodedLayer& layer = set.layers[i] = coded_layer(data.layers[i], bases[i], plan[2 * i], plan[2 * i + 1]);
    layer.key.damage = weights[i].key * expected_error_of(bases[i].key, plan[2 * i]);
    layer.value.damage = weights[i].value * expected_error_of(bases[i].value, plan[2 * i + 1]);
  });
  return set;
}

}  // namespace oscar
