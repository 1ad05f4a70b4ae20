// SPDX-License-Identifier: MIT
#include "spectral/spectrum.hpp"

#include <cmath>

namespace oscar {
namespace {

void fix_signs(Spectrum& spectrum) {
  const auto d = static_cast<std::size_t>(spectrum.dim);
  for (std::size_t j = 0; j < d; ++j) {
    double largest = 0;
    for (std::size_t i = 0; i < d; ++i) {
      const double component = spectrum.vectors[i * d + j];
      if (std::abs(component) > std::abs(largest)) largest = component;
    }
    if (largest >= 0) continue;
    for (std::size_t i = 0; i < d; ++i) spectrum.vectors[i * d + j] = -spectrum.vectors[i * d + j];
  }
}

}  // namespace

std::vector<Spectrum> decompose(const MatrixStack& covariance, Backend& backend) {
  MatrixStack symmetric(covariance.count, covariance.dim);
  const auto d = static_cast<std::size_t>(covariance.dim);
  for (int h = 0; h < covariance.count; ++h) {
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        symmetric[h][i * d + j] = (covariance[h][i * d + j] + covariance[h][j * d + i]) / 2;
      }
    }
  }
  std::vector<Spectrum> spectra;
  for (Eigenpairs& pairs : backend.eigh(symmetric)) {
    spectra.push_back({covariance.dim, std::move(pairs.values), std::move(pairs.vectors)});
    fix_signs(spectra.back());
  }
  return spectra;
}

MatrixStack mean_over_heads(const MatrixStack& covariance) {
  MatrixStack mean(1, covariance.dim);
  for (int h = 0; h < covariance.count; ++h) {
    for (std::size_t i = 0; i < mean.data.size(); ++i) mean.data[i] += covariance[h][i] / covariance.count;
  }
  return mean;
}

}  // namespace oscar
