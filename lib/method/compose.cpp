// SPDX-License-Identifier: MIT
#include "method/compose.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <map>

#include "base/errors.hpp"
#include "base/exp.hpp"
#include "base/text.hpp"

namespace oscar {
namespace {

bool is_power_of_two(int value) { return std::has_single_bit(static_cast<unsigned>(value)); }

/// a (m, m), b (n, n) -> (m n, m n).
Matrix kronecker(const Matrix& a, int m, const Matrix& b, int n) {
  const int size = m * n;
  Matrix out(static_cast<std::size_t>(size) * size);
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < size; ++j) {
      out[static_cast<std::size_t>(i) * size + j] =
          a[static_cast<std::size_t>(i / n) * m + j / n] * b[static_cast<std::size_t>(i % n) * n + j % n];
    }
  }
  return out;
}

Matrix sylvester(int dim) {
  Matrix h{1};
  for (int n = 1; n < dim; n *= 2) h = kronecker({1, 1, 1, -1}, 2, h, n);
  return h;
}

/// 1 if a is a non-zero square modulo the prime q, -1 if it is none, 0 if q divides a.
int quadratic_character(int a, int q) {
  a = (a % q + q) % q;
  for (int x = 1; x < q; ++x) {
    if (x * x % q == a) return 1;
  }
  return a == 0 ? 0 : -1;
}

/// Paley's conference matrix of order q + 1: zero diagonal, border of ones (signed so that it is skew if q = 3 mod 4).
Matrix conference(int q) {
  const int n = q + 1;
  const double below = q % 4 == 3 ? -1 : 1;
  Matrix c(static_cast<std::size_t>(n) * n);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      double entry = quadratic_character(i - j, q);
      if (i == 0) entry = j == 0 ? 0 : 1;
      if (j == 0 && i > 0) entry = below;
      c[static_cast<std::size_t>(i) * n + j] = entry;
    }
  }
  return c;
}

/// Paley I: I + C for q = 3 mod 4, of order q + 1.
Matrix paley_one(int q) {
  Matrix h = conference(q);
  for (int i = 0; i <= q; ++i) h[static_cast<std::size_t>(i) * (q + 2)] += 1;
  return h;
}

/// Paley II: C (x) [1 1; 1 -1] + I (x) [1 -1; -1 -1] for q = 1 mod 4, of order 2 (q + 1).
Matrix paley_two(int q) {
  const int n = q + 1;
  Matrix identity(static_cast<std::size_t>(n) * n);
  for (int i = 0; i < n; ++i) identity[static_cast<std::size_t>(i) * (n + 1)] = 1;
  Matrix h = kronecker(conference(q), n, {1, 1, 1, -1}, 2);
  const Matrix diagonal = kronecker(identity, n, {1, -1, -1, -1}, 2);
  for (std::size_t i = 0; i < h.size(); ++i) h[i] += diagonal[i];
  return h;
}

/// The factor of dim that is not Sylvester's: dim = base * 2^k with base 1, 12, 20 or 28; 0 if dim has no such form.
int hadamard_base(int dim) {
  for (const int base : {1, 12, 20, 28}) {
    if (dim % base == 0 && is_power_of_two(dim / base)) return base;
  }
  return 0;
}

Matrix base_matrix(int base) {
  if (base == 12) return paley_one(11);
  if (base == 20) return paley_one(19);
  if (base == 28) return paley_two(13);
  return {1};
}

int largest_power_of_two(int dim) { return dim & -dim; }

Matrix block_diagonal(const Matrix& block, int size, int dim) {
  Matrix out(static_cast<std::size_t>(dim) * dim);
  for (int i = 0; i < dim; ++i) {
    for (int j = i - i % size; j < i - i % size + size; ++j) {
      out[static_cast<std::size_t>(i) * dim + j] = block[static_cast<std::size_t>(i % size) * size + j % size];
    }
  }
  return out;
}

int reverse_bits(int value, int count) {
  int reversed = 0;
  for (int bit = 0; bit < count; ++bit) reversed |= ((value >> bit) & 1) << (count - 1 - bit);
  return reversed;
}

/// a P.
Matrix permute_columns(const Matrix& a, const std::vector<int>& perm) {
  const std::size_t d = perm.size();
  Matrix out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) out[i * d + j] = a[i * d + static_cast<std::size_t>(perm[j])];
  }
  return out;
}

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

std::vector<double> hadamard(int dim) {
  OSCAR_CHECK(dim >= 1);
  const int base = hadamard_base(dim);
  const int order = base > 0 ? dim : largest_power_of_two(dim);
  Matrix h = base > 0 ? kronecker(base_matrix(base), base, sylvester(dim / base), dim / base)
                      : block_diagonal(sylvester(order), order, dim);
  const double scale = 1 / std::sqrt(static_cast<double>(order));
  for (double& entry : h) entry *= scale;
  return h;
}

std::vector<int> deal_permutation(int dim) {
  const int groups = largest_power_of_two(dim), per_group = dim / groups;
  const int bits = std::countr_zero(static_cast<unsigned>(groups));
  std::vector<int> perm(static_cast<std::size_t>(dim));
  for (int i = 0; i < dim; ++i) {
    const int place = reverse_bits(i % groups, bits) * per_group + i / groups;
    perm[static_cast<std::size_t>(place)] = dim - 1 - i;
  }
  return perm;
}

std::string_view name_of(Composition composition) { return composition == Composition::kPlain ? "plain" : "r_h_pbr"; }

Composition composition_from_name(const std::string& name) {
  if (name == "plain") return Composition::kPlain;
  if (name == "r_h_pbr") return Composition::kRHPbr;
  throw unknown_choice(name, "--composition", {"r_h_pbr", "plain"});
}

MatrixStack compose(const std::vector<Spectrum>& spectra, Composition composition) {
  OSCAR_CHECK(!spectra.empty());
  MatrixStack rotations(static_cast<int>(spectra.size()), spectra.front().dim);
  const Matrix h = hadamard(rotations.dim);
  const std::vector<int> perm = deal_permutation(rotations.dim);
  for (int head = 0; head < rotations.count; ++head) {
    const Matrix& u = spectra[static_cast<std::size_t>(head)].vectors;
    std::ranges::copy(composition == Composition::kPlain ? u : permute_columns(multiply(u, h, rotations.dim), perm),
                      rotations[head].begin());
  }
  return rotations;
}

MatrixStack hadamard_rotation(int dim) {
  MatrixStack rotation(1, dim);
  rotation.data = hadamard(dim);
  return rotation;
}

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
