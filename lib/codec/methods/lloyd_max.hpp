// SPDX-License-Identifier: MIT
// The four levels that OSCAR's two code bases have for N(0, 1).
#pragma once

#include "codec/methods/codebook.hpp"

namespace oscar::methods {

/// Its Python: the right thresholds, evenly spaced levels; published with ratio 1.16.
[[nodiscard]] Codebook oscar_lloyd_max_codebook(double ratio);
/// Its llama.cpp branch, type Q2_0.
[[nodiscard]] Codebook q2_0_codebook();

}  // namespace oscar::methods
