// SPDX-License-Identifier: MIT
// Rotations in every composition that the published fitter has, by its names. We make two of them, and read all.
#pragma once

#include <map>
#include <string>

#include "method/compose.hpp"

namespace oscar::test {

/// U: eigenvectors in columns, H: Hadamard, P: the deal permutation; (1, d, d).
inline MatrixStack compose_as_published(const Spectrum& spectrum, const std::string& name) {
  const int d = spectrum.dim;
  const Matrix h = hadamard(d);
  const auto dealt = [d, perm = deal_permutation(d)](const Matrix& a) {
    Matrix out(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::size_t row = i / static_cast<std::size_t>(d) * static_cast<std::size_t>(d);
      out[i] = a[row + static_cast<std::size_t>(perm[i - row])];
    }
    return out;
  };
  const std::map<std::string, std::string> factors{{"plain", "U"},     {"pbr", "P"},       {"br", "UP"},
                                                   {"br_h128", "UPH"}, {"r_h", "UH"},      {"h_pbr", "HP"},
                                                   {"h_r_pbr", "HUP"}, {"h_pbr_r", "HPU"}, {"r_h_pbr", "UHP"}};
  MatrixStack rotation = MatrixStack::identity(d);
  for (const char factor : factors.at(name)) {
    rotation.data =
        factor == 'P' ? dealt(rotation.data) : multiply(rotation.data, factor == 'H' ? h : spectrum.vectors, d);
  }
  return rotation;
}

}  // namespace oscar::test
