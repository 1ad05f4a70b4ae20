// SPDX-License-Identifier: MIT
#include "method/compose.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/text.hpp"
#include "method/bases.hpp"
#include "method/matrix.hpp"

namespace oscar {
namespace {

/// a P.
Matrix permute_columns(const Matrix& a, const std::vector<int>& perm) {
  const std::size_t d = perm.size();
  Matrix out(d * d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) out[i * d + j] = a[i * d + static_cast<std::size_t>(perm[j])];
  }
  return out;
}

}  // namespace

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

}  // namespace oscar
