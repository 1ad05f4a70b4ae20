// SPDX-License-Identifier: MIT
#include <algorithm>

#include "verify/subject.hpp"

namespace oscar {
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

}  // namespace oscar
