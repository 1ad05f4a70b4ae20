// SPDX-License-Identifier: MIT
#include "fit/coded_fit.hpp"

#include <algorithm>
#include <cmath>

#include "base/errors.hpp"
#include "base/threads.hpp"
#include "fit/coded_data.hpp"

namespace oscar {
namespace {

/// Bits of codes with which damage is measured, the same for every head.
constexpr double kTrialBits = 2;
/// Errors below this are noise of arithmetic.
constexpr double kLeastDamage = 1e-5;

/// The same bits for the keys, and for the values, of every head.
CodedLevels trial_levels(const CodedBasis& basis, int layer_id, const char* side) {
  const CodedSpectrum spectrum = spectrum_of(basis, layer_id, side, 1);
  return plan_levels({&spectrum, 1}, kTrialBits + 16.0 / spectrum.dim, CodedScope::kHead).front();
}

/// The error that codes of `levels` are expected to make in a basis: lambda as a set has it, in the order of levels.
double expected_error_of(const std::vector<double>& lambda, const std::vector<int>& levels, std::size_t dim) {
  double error = 0;
  for (std::size_t first = 0; first < lambda.size(); first += dim) {
    error += expected_error(std::span(lambda).subspan(first, dim), std::span(levels).subspan(first, dim));
  }
  return error;
}

double expected_error_of(const CodedSide& side) {
  std::vector<int> levels;
  for (const CodedFormat& format : side.formats) {
    levels.insert(levels.end(), format.levels.begin(), format.levels.end());
  }
  return expected_error_of(side.lambda, levels, side.lambda.size() / side.formats.size());
}

/// What an error of 1 costs if that of the trial costs `damage`.
double weight_by(double damage, const CodedBasis& basis, int layer_id, const char* side) {
  const CodedLevels trial = trial_levels(basis, layer_id, side);
  std::vector<double> lambda;
  const auto dim = static_cast<std::size_t>(basis.transform.rotation.dim);
  for (std::size_t i = 0; i < trial.order.size(); ++i) {
    const double exact = basis.lambda[i / dim * dim + static_cast<std::size_t>(trial.order[i])];
    lambda.push_back(static_cast<double>(static_cast<float>(exact)));
  }
  return std::max(damage, kLeastDamage) / expected_error_of(lambda, trial.levels, dim);
}

/// Ratios weigh layers and sides against each other. Where costs are known, variances have them.
CodedDamage weights_of(const CodedLayerData& layer, const CodedBases& bases) {
  if (!layer.damage) return {1, 1};
  const int id = layer.sums.layer_id;
  return {weight_by(layer.damage->key, bases.key, id, "key"), weight_by(layer.damage->value, bases.value, id, "value")};
}

CodedLayer coded_layer(const CodedLayerData& data, const CodedBases& bases, const CodedLevels& key,
                       const CodedLevels& value) {
  return {data.sums.layer_id, coded_side(bases.key, data.key_rows, key),
          coded_side(bases.value, data.value_rows, value)};
}

CodedDamage damage_of(const CodedLayerData& data, Windows windows, const MeasureDamage& measure, Backend& backend) {
  const CodedBases bases = bases_of(data, backend);
  const int id = data.sums.layer_id;
  CodedSet trial;
  trial.windows = windows;
  trial.layers = {coded_layer(data, bases, trial_levels(bases.key, id, "key"), trial_levels(bases.value, id, "value"))};
  const CodedDamage damage = measure(trial);
  if (std::isfinite(damage.key) && std::isfinite(damage.value)) return damage;
  throw NumericalError("what errors cost is not a finite number", "layer " + std::to_string(id),
                       "look at the data of the layer");
}

/// From its sums to its damage.
CodedLayerData take_whole_layer(int id, LayerStream& rows, const CodedOptions& options, const ErrorCosts& costs,
                                const MeasureDamage& measure, Backend& backend) {
  const auto cost = costs.find(id);
  const ErrorCost* const own = cost == costs.end() ? nullptr : &cost->second;
  CodedLayerData layer = take_coded_layer(id, rows, options, own, backend);
  if (own == nullptr && measure) layer.damage = damage_of(layer, options.windows, measure, backend);
  return layer;
}

}  // namespace

CodedData take_coded_data(QkvSource& source, const CodedOptions& options, const ErrorCosts& costs,
                          const MeasureDamage& measure, const PartialFolder* folder, Backend& backend, Status& status) {
  CodedData data{source.model(), {source.calibration()}, options.windows, {}, options.recipe};
  // A trial set is measured on the layer's rows.
  const bool tried = std::ranges::any_of(source.layer_ids(), [&](int id) { return !costs.contains(id); });
  data.layers = take_layers<CodedLayerData>(
      source, kept_coded(folder, data), "layers taken", tried ? 1 : backend.work_shape().concurrent_layers,
      [&](int id, LayerStream& rows) { return take_whole_layer(id, rows, options, costs, measure, backend); }, status);
  return data;
}

CodedSet fit_coded(const CodedData& data, double bits, CodedScope scope, Backend& backend) {
  CodedSet set;
  set.model = data.model, set.calibration = calibration_of(data.data), set.windows = data.windows;
  set.bits = bits, set.scope = name_of(scope), set.recipe = data.recipe;
  std::vector<CodedBases> bases;
  std::vector<CodedDamage> weights;
  std::vector<CodedSpectrum> spectra;  // keys and values of each layer, one after the other
  for (const CodedLayerData& layer : data.layers) {
    throw_if_interrupted();
    bases.push_back(bases_of(layer, backend));
    weights.push_back(weights_of(layer, bases.back()));
    spectra.push_back(spectrum_of(bases.back().key, layer.sums.layer_id, "key", weights.back().key));
    spectra.push_back(spectrum_of(bases.back().value, layer.sums.layer_id, "value", weights.back().value));
  }
  const std::vector<CodedLevels> plan = plan_levels(spectra, bits, scope);
  set.layers.resize(data.layers.size());
  parallel_for(data.layers.size(), [&](std::size_t i) {
    throw_if_interrupted();
    CodedLayer& layer = set.layers[i] = coded_layer(data.layers[i], bases[i], plan[2 * i], plan[2 * i + 1]);
    layer.key.damage = weights[i].key * expected_error_of(layer.key);
    layer.value.damage = weights[i].value * expected_error_of(layer.value);
  });
  return set;
}

}  // namespace oscar
