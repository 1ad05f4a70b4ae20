// SPDX-License-Identifier: MIT
// From rows and levels to the formats of one side of a coded layer. A grid is a channel's standard deviation sigma and
// the distance of its levels, step, chosen on calibration rows so that static grids fit rows whose scale the packed row
// carries (kernels/reference/coded_row.hpp).
#pragma once

#include <span>
#include <vector>

#include "method/coded_basis.hpp"
#include "method/coded_levels.hpp"
#include "set/coded_part.hpp"

namespace oscar {

/// The grids of one KV head's keys, or values.
struct CodedGrid {
  std::vector<float> sigma;  // (d): root mean square of the channel over all rows; 0 where it has one level
  std::vector<float> step;   // (d): distance of two levels at scale 1; 0 where it has one level
};

/// rows: (n, d) in coded coordinates. levels: (d). The step of a channel is the one of 51 factors around that of a
/// Gaussian which has the least squared error over the rows, each divided by its class's scale and weighted by the
/// square of that. Throws NumericalError that names a channel which is constantly zero although it has levels.
[[nodiscard]] CodedGrid fit_grid(std::span<const float> rows, std::span<const int> levels);

/// Returns the side with these levels: channels are reordered, equal levels mixed (coordinates of pairs of channels are
/// not, and stay apart), grids fitted to the rows, and all numbers rounded to float32. rows: of each KV head (n, d), in
/// native coordinates; of keys before RoPE, turned back. Throws NumericalError that names a channel with levels which
/// is constantly zero.
[[nodiscard]] CodedSide coded_side(CodedBasis basis, const std::vector<std::vector<float>>& rows,
                                   const CodedLevels& levels);

}  // namespace oscar
