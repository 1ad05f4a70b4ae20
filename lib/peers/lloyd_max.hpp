// SPDX-License-Identifier: MIT
// The four levels that OSCAR's llama.cpp branch has for N(0, 1); those of its published Python are Grid::kLloydMax.
#pragma once

#include "peers/codebook.hpp"

namespace oscar::methods {

/// Returns the codebook of llama.cpp's type Q2_0.
[[nodiscard]] Codebook q2_0_codebook();

}  // namespace oscar::methods
