// SPDX-License-Identifier: MIT
#include "method/spectrum.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/vector_clones.hpp"

namespace oscar {
namespace {

/// out += a b
OSCAR_VECTOR_CLONES void add_product(const double* a, const double* b, std::size_t d, double* out) {
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t k = 0; k < d; ++k) {
      const double factor = a[i * d + k];
      for (std::size_t j = 0; j < d; ++j) out[i * d + j] += factor * b[k * d + j];
    }
  }
}

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

/// Appends (C + C^T) / 2 of each matrix.
void append_symmetric_part(const MatrixStack& covariance, MatrixStack& out) {
  const auto d = static_cast<std::size_t>(covariance.dim);
  for (int h = 0; h < covariance.count; ++h) {
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = 0; j < d; ++j) {
        out.data.push_back((covariance[h][i * d + j] + covariance[h][j * d + i]) / 2);
      }
    }
  }
  out.count += covariance.count;
}

}  // namespace

Matrix multiply(std::span<const double> a, std::span<const double> b, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  Matrix out(d * d);
  add_product(a.data(), b.data(), d, out.data());
  return out;
}

Matrix transposed(std::span<const double> a, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  Matrix out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) out[i * d + j] = a[j * d + i];
  }
  return out;
}

Matrix power_of(const Spectrum& spectrum, double power) {
  const auto d = static_cast<std::size_t>(spectrum.dim);
  Matrix scaled = spectrum.vectors;
  for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] *= std::pow(std::max(spectrum.values[i % d], 1e-12), power);
  return multiply(scaled, transposed(spectrum.vectors, spectrum.dim), spectrum.dim);
}

double trace(std::span<const double> a, int dim) {
  const auto d = static_cast<std::size_t>(dim);
  double sum = 0;
  for (std::size_t i = 0; i < d; ++i) sum += a[i * d + i];
  return sum;
}

std::vector<double> rounded_to_f32(std::vector<double> values) {
  for (double& value : values) value = static_cast<double>(static_cast<float>(value));
  return values;
}

MatrixStack rounded_to_f32(MatrixStack stack) {
  stack.data = rounded_to_f32(std::move(stack.data));
  return stack;
}

std::vector<Spectrum> decompose(const MatrixStack& covariance, Backend& backend) {
  return std::move(decompose(std::vector{&covariance}, backend).front());
}

std::vector<std::vector<Spectrum>> decompose(const std::vector<const MatrixStack*>& covariances, Backend& backend) {
  std::map<int, MatrixStack> by_dim;
  for (const MatrixStack* covariance : covariances) {
    append_symmetric_part(*covariance, by_dim.try_emplace(covariance->dim, 0, covariance->dim).first->second);
  }
  std::map<int, std::vector<Eigenpairs>> solved;
  std::map<int, std::size_t> next;
  for (const auto& [dim, stack] : by_dim) solved[dim] = backend.eigh(stack);
  std::vector<std::vector<Spectrum>> spectra;
  for (const MatrixStack* covariance : covariances) {
    spectra.emplace_back();
    for (int h = 0; h < covariance->count; ++h) {
      Eigenpairs& pairs = solved[covariance->dim][next[covariance->dim]++];
      spectra.back().push_back({covariance->dim, std::move(pairs.values), std::move(pairs.vectors)});
      fix_signs(spectra.back().back());
    }
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
