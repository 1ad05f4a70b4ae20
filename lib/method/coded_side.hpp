// SPDX-License-Identifier: MIT
// One side of a layer of the coded cache, once its levels are planned.
#pragma once

#include <vector>

#include "coded/coded_set.hpp"
#include "method/coded_basis.hpp"
#include "method/coded_levels.hpp"

namespace oscar {

/// Returns the side with these levels: channels are reordered, equal levels mixed, grids fitted to the rows, and all
/// numbers rounded to float32. rows: of each KV head (n, d), in native coordinates. Throws NumericalError that names a
/// channel with levels which is constantly zero.
[[nodiscard]] CodedSide coded_side(CodedBasis basis, const std::vector<std::vector<float>>& rows,
                                   const CodedLevels& levels);

}  // namespace oscar
