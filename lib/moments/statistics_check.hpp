// SPDX-License-Identifier: MIT
// What sums over rows are, whatever the rows: finite, symmetric, with a diagonal that bounds the rest, and positive
// semidefinite within rounding. Non-goal: whether they are those of the data that a manifest names, but for the number
// of tokens.
#pragma once

#include <string>

#include "moments/statistics.hpp"

namespace oscar {

/// Looks at one layer as a file has it, in time like that of reading it. Throws DataError, which names the sums, unless
/// heads and dimensions are those of the manifest's model, totals are no more than the tokens of its data, and all sums
/// could be sums over rows as far as single entries tell. where: names the file.
void require_sums_of_rows(const LayerStatistics& layer, const Statistics& manifest, const std::string& where);

/// Throws DataError if a sum over the layer's rows has an eigenvalue below -1e-5 of its trace (moments by fp32 products
/// are within 2e-6). A second pass over a sample of rows is an estimate, and is not asked for that.
void require_semidefinite(const LayerStatistics& layer, bool sampled, const std::string& where);

}  // namespace oscar
