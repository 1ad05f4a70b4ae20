// SPDX-License-Identifier: MIT
#include "fit/coded_fit.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "base/errors.hpp"
#include "base/threads.hpp"

namespace oscar {
namespace {

/// Bits of codes with which damage is measured, the same for every head.
constexpr double kTrialBits = 2;
/// Errors below this are noise of arithmetic.
constexpr double kLeastDamage = 1e-5;

std::vector<CodedLayerData> take_layers(QkvSource& source, const CodedOptions& options,
                                        const std::map<int, ErrorCost>& costs, Backend& backend, Status& status) {
  std::vector<CodedLayerData> layers;
  const auto total = static_cast<std::int64_t>(source.layer_ids().size());
  status.progress("layers taken", 0, total);
  for (const int id : source.layer_ids()) {
    throw_if_interrupted();
    const auto cost = costs.find(id);
    const ErrorCost* const own = cost == costs.end() ? nullptr : &cost->second;
    layers.push_back(take_coded_layer(id, *source.open(id), options, own, backend));
    status.progress("layers taken", std::ssize(layers), total);
  }
  return layers;
}

/// Keys and values of each layer, one after the other.
std::vector<CodedSpectrum> spectra_of(const CodedData& data) {
  std::vector<CodedSpectrum> spectra;
  for (std::size_t i = 0; i < data.layers.size(); ++i) {
    const CodedLayerData& layer = data.layers[i];
    spectra.push_back(spectrum_of(layer.key, layer.layer_id, "key"));
    spectra.back().weight = data.weights[i].key;
    spectra.push_back(spectrum_of(layer.value, layer.layer_id, "value"));
    spectra.back().weight = data.weights[i].value;
  }
  return spectra;
}

/// The same bits for the keys, and for the values, of every head.
std::vector<CodedLevels> trial_plan(const std::vector<CodedSpectrum>& spectra) {
  std::vector<CodedLevels> plan;
  for (const CodedSpectrum& spectrum : spectra) {
    plan.push_back(plan_levels({&spectrum, 1}, kTrialBits + 16.0 / spectrum.dim, CodedScope::kHead).front());
  }
  return plan;
}

std::vector<CodedLayer> coded_layers(const std::vector<CodedLayerData>& layers, const std::vector<CodedLevels>& plan) {
  std::vector<CodedLayer> coded;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    throw_if_interrupted();
    coded.push_back(
        {layers[i].layer_id, coded_side(layers[i].key, plan[2 * i]), coded_side(layers[i].value, plan[2 * i + 1])});
  }
  return coded;
}

/// The error that a side is expected to make, in its basis.
double error_of(const CodedSide& side) {
  double error = 0;
  const std::size_t dim = side.lambda.size() / side.formats.size();
  for (std::size_t head = 0; head < side.formats.size(); ++head) {
    error += expected_error(std::span(side.lambda).subspan(head * dim, dim), side.formats[head].levels);
  }
  return error;
}

/// What errors of 1 cost if those of `trial` cost so much.
std::vector<CodedDamage> weights_by(const std::vector<CodedDamage>& damage, const CodedSet& trial) {
  OSCAR_CHECK(damage.size() == trial.layers.size());
  std::vector<CodedDamage> weights;
  for (std::size_t i = 0; i < damage.size(); ++i) {
    const CodedLayer& layer = trial.layers[i];
    if (!std::isfinite(damage[i].key) || !std::isfinite(damage[i].value)) {
      throw NumericalError("what errors cost is not a finite number", "layer " + std::to_string(layer.layer_id),
                           "look at the data of the layer");
    }
    weights.push_back({std::max(damage[i].key, kLeastDamage) / error_of(layer.key),
                       std::max(damage[i].value, kLeastDamage) / error_of(layer.value)});
  }
  return weights;
}

}  // namespace

CodedData take_coded_data(QkvSource& source, const CodedOptions& options, const std::map<int, ErrorCost>& costs,
                          const MeasureDamage& measure, Backend& backend, Status& status) {
  CodedData data;
  data.windows = options.windows;
  data.layers = take_layers(source, options, costs, backend, status);
  data.model = source.model(), data.calibration = source.calibration();
  data.weights.assign(data.layers.size(), {1, 1});
  if (!costs.empty() || !measure) return data;
  CodedSet trial;
  trial.windows = options.windows;
  trial.layers = coded_layers(data.layers, trial_plan(spectra_of(data)));
  data.weights = weights_by(measure(trial), trial);
  return data;
}

CodedSet fit_coded(const CodedData& data, double bits, CodedScope scope) {
  CodedSet set;
  set.model = data.model, set.calibration = data.calibration, set.windows = data.windows;
  set.bits = bits, set.scope = name_of(scope), set.recipe = data.recipe;
  set.layers = coded_layers(data.layers, plan_levels(spectra_of(data), bits, scope));
  for (std::size_t i = 0; i < set.layers.size(); ++i) {
    set.layers[i].key.damage = data.weights[i].key * error_of(set.layers[i].key);
    set.layers[i].value.damage = data.weights[i].value * error_of(set.layers[i].value);
  }
  return set;
}

}  // namespace oscar
