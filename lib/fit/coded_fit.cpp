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
std::vector<CodedSpectrum> spectra_of(const std::vector<CodedLayerData>& layers) {
  std::vector<CodedSpectrum> spectra;
  for (const CodedLayerData& layer : layers) {
    spectra.push_back(spectrum_of(layer.key, layer.layer_id, "key"));
    spectra.push_back(spectrum_of(layer.value, layer.layer_id, "value"));
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

/// Weighs the errors of layers and sides by what those of `trial` cost.
void weigh(const std::vector<CodedDamage>& damage, const CodedSet& trial, std::vector<CodedSpectrum>& spectra) {
  OSCAR_CHECK(damage.size() == trial.layers.size());
  for (std::size_t i = 0; i < damage.size(); ++i) {
    if (!std::isfinite(damage[i].key) || !std::isfinite(damage[i].value)) {
      throw NumericalError("what errors cost is not a finite number",
                           "layer " + std::to_string(trial.layers[i].layer_id), "look at the data of the layer");
    }
    const CodedLayer& layer = trial.layers[i];
    spectra[2 * i].weight = std::max(damage[i].key, kLeastDamage) / error_of(layer.key);
    spectra[2 * i + 1].weight = std::max(damage[i].value, kLeastDamage) / error_of(layer.value);
  }
}

}  // namespace

CodedSet fit_coded(QkvSource& source, const CodedOptions& options, const std::map<int, ErrorCost>& costs,
                   const MeasureDamage& measure, Backend& backend, Status& status) {
  CodedSet set;
  set.windows = options.windows, set.bits = options.bits, set.scope = name_of(options.scope);
  const std::vector<CodedLayerData> layers = take_layers(source, options, costs, backend, status);
  set.model = source.model(), set.calibration = source.calibration();
  std::vector<CodedSpectrum> spectra = spectra_of(layers);
  if (costs.empty() && measure) {
    set.layers = coded_layers(layers, trial_plan(spectra));
    weigh(measure(set), set, spectra);
  }
  set.layers = coded_layers(layers, plan_levels(spectra, options.bits, options.scope));
  for (std::size_t i = 0; i < layers.size(); ++i) {
    set.layers[i].key.damage = spectra[2 * i].weight * error_of(set.layers[i].key);
    set.layers[i].value.damage = spectra[2 * i + 1].weight * error_of(set.layers[i].value);
  }
  return set;
}

}  // namespace oscar
