// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "model/config/config.hpp"

namespace oscar {
namespace {

/// Slow frequencies are divided by the factor, fast ones kept, those between mixed.
void scale_llama3(const RopeSpec& spec, std::span<float> frequencies) {
  const double low = spec.original_context / spec.low_frequency_factor;
  const double high = spec.original_context / spec.high_frequency_factor;
  for (float& frequency : frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength < high) continue;
    const double kept = wavelength > low ? 0
                                         : (spec.original_context / wavelength - spec.low_frequency_factor) /
                                               (spec.high_frequency_factor - spec.low_frequency_factor);
    frequency = static_cast<float>((1 - kept) * frequency / spec.factor + kept * frequency);
  }
}

/// The same with a ramp over the channels, between those that turn beta_fast and beta_slow times in the context.
void scale_yarn(const RopeSpec& spec, std::span<float> frequencies) {
  const auto channel = [&](double turns) {
    return spec.dim * std::log(spec.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(spec.theta));
  };
  double low = channel(spec.beta_fast), high = channel(spec.beta_slow);
  if (spec.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, spec.dim - 1.0);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const double kept = 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = static_cast<float>(frequencies[i] / spec.factor * (1 - kept) + frequencies[i] * kept);
  }
}

}  // namespace

std::vector<float> inverse_frequencies(const RopeSpec& spec, std::int64_t end) {
  std::vector<float> values;
  for (int i = 0; i < spec.dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(spec.dim);
    values.push_back(1 / static_cast<float>(std::pow(spec.theta, double{exponent})));
  }
  if (spec.type == "llama3") scale_llama3(spec, values);
  if (spec.type == "yarn") scale_yarn(spec, values);
  if (spec.type == "longrope") {
    const std::vector<double>& factors =
        static_cast<double>(end) > spec.original_context ? spec.long_factors : spec.short_factors;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(values[i] / factors[i]);
  }
  if (spec.type == "proportional") {
    const auto rotated = static_cast<std::size_t>(spec.rotated_share * spec.dim / 2);
    std::fill(values.begin() + static_cast<std::ptrdiff_t>(std::min(rotated, values.size())), values.end(), 0.0F);
  }
  if (spec.type == "linear" || spec.type == "proportional") {
    for (float& value : values) value /= static_cast<float>(spec.factor);
  }
  return values;
}

}  // namespace oscar
