// SPDX-License-Identifier: MIT
#include "method/compose.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.hpp"
#include "base/text.hpp"
#include "method/bases.hpp"
#include "method/matrix.hpp"

namespace oscar {
namespace {

constexpr std::array<std::pair<Composition, std::string_view>, 9> kNames{{{Composition::kPlain, "plain"},
                                                                          {Composition::kPbr, "pbr"},
                                                                          {Composition::kBr, "br"},
                                                                          {Composition::kBrH128, "br_h128"},
                                                                          {Composition::kRH, "r_h"},
                                                                          {Composition::kHPbr, "h_pbr"},
                                                                          {Composition::kHRPbr, "h_r_pbr"},
                                                                          {Composition::kHPbrR, "h_pbr_r"},
                                                                          {Composition::kRHPbr, "r_h_pbr"}}};

/// a P.
Matrix permute_columns(const Matrix& a, const std::vector<int>& perm) {
  const std::size_t d = perm.size();
  Matrix out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) out[i * d + j] = a[i * d + static_cast<std::size_t>(perm[j])];
  }
  return out;
}

Matrix compose_one(const Matrix& r, int d, Composition composition) {
  const Matrix h = hadamard(d);
  const auto p = [perm = deal_permutation(d)](const Matrix& a) { return permute_columns(a, perm); };
  switch (composition) {
    case Composition::kPlain:
      return r;
    case Composition::kPbr:
      return p(MatrixStack::identity(d).data);
    case Composition::kBr:
      return p(r);
    case Composition::kBrH128:
      return multiply(p(r), h, d);
    case Composition::kRH:
      return multiply(r, h, d);
    case Composition::kHPbr:
      return p(h);
    case Composition::kHRPbr:
      return p(multiply(h, r, d));
    case Composition::kHPbrR:
      return multiply(p(h), r, d);
    case Composition::kRHPbr:
      return p(multiply(r, h, d));
  }
  OSCAR_CHECK(false);
  return {};
}

}  // namespace

std::string_view name_of(Composition composition) { return kNames[static_cast<std::size_t>(composition)].second; }

Composition composition_from_name(std::string_view name) {
  std::vector<std::string> known;
  for (const auto& [composition, text] : kNames) {
    if (text == name) return composition;
    known.emplace_back(text);
  }
  throw unknown_choice(std::string(name), "--composition", known);
}

MatrixStack compose(const std::vector<Spectrum>& spectra, Composition composition) {
  OSCAR_CHECK(!spectra.empty());
  MatrixStack rotations(static_cast<int>(spectra.size()), spectra.front().dim);
  for (int h = 0; h < rotations.count; ++h) {
    const Matrix rotation = compose_one(spectra[static_cast<std::size_t>(h)].vectors, rotations.dim, composition);
    std::copy(rotation.begin(), rotation.end(), rotations[h].begin());
  }
  return rotations;
}

MatrixStack residual_rotation(const std::vector<Spectrum>& residual, const std::vector<Spectrum>& covariance) {
  OSCAR_CHECK(residual.size() == covariance.size() && !residual.empty());
  MatrixStack rotations(static_cast<int>(residual.size()), residual.front().dim);
  const auto d = static_cast<std::size_t>(rotations.dim);
  for (int h = 0; h < rotations.count; ++h) {
    const Matrix& from = covariance[static_cast<std::size_t>(h)].vectors;
    const Matrix& to = residual[static_cast<std::size_t>(h)].vectors;
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t r = 0; r < d; ++r) {
        for (std::size_t j = 0; j < d; ++j) rotations[h][i * d + j] += to[i * d + r] * from[j * d + (d - 1 - r)];
      }
    }
  }
  return rotations;
}

MatrixStack hadamard_rotation(int dim) {
  MatrixStack rotation(1, dim);
  rotation.data = hadamard(dim);
  return rotation;
}

}  // namespace oscar
