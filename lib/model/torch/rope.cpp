// SPDX-License-Identifier: MIT
#include "model/torch/rope.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

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

/// theta^(-2i/d) and what the variant makes of it, (dim / 2). Powers in fp32, as models are trained.
at::Tensor inverse_frequencies(const RopeSpec& spec, std::int64_t end) {
  const at::Tensor exponents = at::arange(0, spec.dim, 2, at::kFloat) / spec.dim;
  const at::Tensor inverse = at::pow(at::Scalar(spec.theta), exponents).reciprocal();
  const std::span<float> values(inverse.data_ptr<float>(), static_cast<std::size_t>(inverse.numel()));
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
  if (spec.type == "linear" || spec.type == "proportional") return inverse / spec.factor;
  return inverse;
}

}  // namespace

RotaryEmbedding::RotaryEmbedding(const RopeSpec& spec, std::int64_t first, std::int64_t end, c10::Device device)
    : spec_(spec) {
  const at::Tensor positions = at::arange(first, end, at::TensorOptions(at::kFloat).device(device));
  const at::Tensor angles = (positions.unsqueeze(-1) * inverse_frequencies(spec, end).to(device)).unsqueeze(1);
  cosine_ = angles.cos() * spec.attention_factor;
  sine_ = angles.sin() * spec.attention_factor;
}

at::Tensor RotaryEmbedding::apply(const at::Tensor& rows) const {
  const at::Tensor x = rows.to(at::kFloat);
  const at::Tensor turning = x.narrow(-1, 0, spec_.dim);
  const bool pairs = spec_.interleaved;
  const at::Tensor first = pairs ? turning.slice(-1, 0, spec_.dim, 2) : turning.narrow(-1, 0, spec_.dim / 2);
  const at::Tensor second =
      pairs ? turning.slice(-1, 1, spec_.dim, 2) : turning.narrow(-1, spec_.dim / 2, spec_.dim / 2);
  const at::Tensor a = (first * cosine_).sub_(second * sine_), b = (second * cosine_).add_(first * sine_);
  const at::Tensor turned = pairs && !spec_.split_pairs ? at::stack({a, b}, -1).flatten(-2) : at::cat({a, b}, -1);
  if (spec_.dim == x.size(-1)) return turned;
  return at::cat({turned, x.narrow(-1, spec_.dim, x.size(-1) - spec_.dim)}, -1);
}

}  // namespace oscar
