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
/// Damage below this is noise of the model's arithmetic.
constexpr double kLeastDamage = 1e-5;

std::vector<CodedLayerData> take_layers(QkvSource& source, const CodedOptions& options,
                                        const OutputProjection& projection, Backend& backend, Status& status) {
  std::vector<CodedLayerData> layers;
  const auto total = static_cast<std::int64_t>(source.layer_ids().size());
  status.progress("layers taken", 0, total);
  for (const int id : source.layer_ids()) {
    throw_if_interrupted();
    layers.push_back(take_coded_layer(id, *source.open(id), options, projection, backend));
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

/// What one unit of expected error costs the model.
double weight_of(double damage, const CodedSide& side) {
  double error = 0;
  const std::size_t dim = side.lambda.size() / side.formats.size();
  for (std::size_t head = 0; head < side.formats.size(); ++head) {
    error += expected_error(std::span(side.lambda).subspan(head * dim, dim), side.formats[head].levels);
  }
  return std::max(damage, kLeastDamage) / error;
}

void require_finite(const std::vector<CodedDamage>& damage, const CodedSet& set) {
  OSCAR_CHECK(damage.size() == set.layers.size());
  for (std::size_t i = 0; i < damage.size(); ++i) {
    if (std::isfinite(damage[i].key) && std::isfinite(damage[i].value)) continue;
    throw NumericalError("what errors cost the model is not a finite number",
                         "layer " + std::to_string(set.layers[i].layer_id), "look at the model's weights and the text");
  }
}

/// Weights of all rounds count the same: a small damage beside others is mostly noise.
void add_weight(double weight, int round, CodedSpectrum& spectrum) {
  spectrum.weight = (spectrum.weight * round + weight) / (round + 1);
}

}  // namespace

CodedSet fit_coded(QkvSource& source, const CodedOptions& options, const OutputProjection& projection,
                   const MeasureDamage& measure, Backend& backend, Status& status) {
  CodedSet set;
  set.windows = options.windows, set.bits = options.bits, set.scope = name_of(options.scope);
  const std::vector<CodedLayerData> layers = take_layers(source, options, projection, backend, status);
  set.model = source.model(), set.calibration = source.calibration();
  std::vector<CodedSpectrum> spectra = spectra_of(layers);
  std::vector<CodedDamage> damage;
  set.layers = coded_layers(layers, measure ? trial_plan(spectra) : plan_levels(spectra, options.bits, options.scope));
  OSCAR_CHECK(!measure || options.rounds >= 1);
  for (int round = 0; measure && round < options.rounds; ++round) {
    damage = measure(set, round == 0 ? CodedBeside::kExact : CodedBeside::kCoded);
    require_finite(damage, set);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      add_weight(weight_of(damage[i].key, set.layers[i].key), round, spectra[2 * i]);
      add_weight(weight_of(damage[i].value, set.layers[i].value), round, spectra[2 * i + 1]);
    }
    set.layers = coded_layers(layers, plan_levels(spectra, options.bits, options.scope));
  }
  for (std::size_t i = 0; i < damage.size(); ++i) {
    set.layers[i].key.damage = std::max(damage[i].key, kLeastDamage);
    set.layers[i].value.damage = std::max(damage[i].value, kLeastDamage);
  }
  return set;
}

}  // namespace oscar
