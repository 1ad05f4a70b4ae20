// SPDX-License-Identifier: MIT
#include "verify/report/set_figures.hpp"

#include <algorithm>
#include <bit>
#include <functional>

namespace oscar::verify {
namespace {

constexpr std::size_t kMostBits = 8;

std::vector<int> channels_by_bits(const CodedFormat& format) {
  std::vector<int> channels(kMostBits + 1);
  for (const int levels : format.levels) ++channels.at(std::bit_width(static_cast<unsigned>(levels)) - 1);
  return channels;
}

/// Empty if nothing varies in a head.
std::vector<double> mean_variances(const CodedSide& side) {
  const std::size_t heads = side.formats.size(), dim = side.lambda.size() / heads;
  std::vector<double> mean(dim);
  for (std::size_t head = 0; head < heads; ++head) {
    const auto first = side.lambda.begin() + static_cast<std::ptrdiff_t>(head * dim);
    std::vector<double> own(first, first + static_cast<std::ptrdiff_t>(dim));
    std::ranges::sort(own, std::greater<>());
    if (own.front() <= 0) return {};
    for (std::size_t i = 0; i < dim; ++i) mean[i] += own[i] / own.front() / static_cast<double>(heads);
  }
  return mean;
}

}  // namespace

std::vector<HeadPlan> plan_of(const CodedSet& set) {
  std::vector<HeadPlan> plan;
  for (const CodedLayer& layer : set.layers) {
    for (const auto& [target, side] : {std::pair("key", &layer.key), std::pair("value", &layer.value)}) {
      for (std::size_t head = 0; head < side->formats.size(); ++head) {
        plan.push_back({layer.layer_id, target, static_cast<int>(head), channels_by_bits(side->formats[head])});
      }
    }
  }
  return plan;
}

std::vector<Spectra> spectra_of(const CodedSet& set) {
  std::vector<Spectra> all;
  for (const CodedLayer& layer : set.layers) {
    for (const auto& [target, side] : {std::pair("key", &layer.key), std::pair("value", &layer.value)}) {
      std::vector<double> values = mean_variances(*side);
      if (!values.empty()) all.push_back({layer.layer_id, target, std::move(values)});
    }
  }
  return all;
}

namespace {

/// Empty if there is nothing to see.
std::vector<double> mean_spectrum(const SideTransform& t) {
  const auto dim = static_cast<std::size_t>(t.rotation.dim);
  if (dim == 0 || t.eigenvalues.empty() || t.eigenvalues.size() % dim != 0) return {};
  const std::size_t heads = t.eigenvalues.size() / dim;
  std::vector<double> mean(dim);
  for (std::size_t begin = 0; begin < t.eigenvalues.size(); begin += dim) {
    const double highest = t.eigenvalues[begin + dim - 1];
    if (highest <= t.eigenvalues[begin]) return {};
    for (std::size_t i = 0; i < dim; ++i)
      mean[dim - 1 - i] += t.eigenvalues[begin + i] / highest / static_cast<double>(heads);
  }
  return mean;
}

}  // namespace

std::vector<Spectra> spectra_of(const Subject& subject) {
  std::vector<Spectra> all;
  for (const SubjectSide& side : subject.sides) {
    for (const auto& [layer, transform] : side.layers) {
      std::vector<double> values = mean_spectrum(transform);
      if (!values.empty()) all.push_back({layer, side.target, std::move(values)});
    }
  }
  return all;
}

std::vector<LayerClips> clips_of(const Subject& subject) {
  if (!subject.set.has_clip_ratios || subject.sides.size() != 2) return {};
  const auto ratios = [](const SideTransform& side) {
    return side.head_clip_ratios.empty() ? std::vector<double>{side.clip_ratio} : side.head_clip_ratios;
  };
  std::vector<LayerClips> all;
  for (const auto& [layer, key] : subject.sides[0].layers) {
    for (const auto& [other, value] : subject.sides[1].layers) {
      if (other == layer) all.push_back({layer, ratios(key), ratios(value)});
    }
  }
  return all;
}

}  // namespace oscar::verify
