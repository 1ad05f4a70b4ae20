// SPDX-License-Identifier: MIT
// What fits of the coded cache took from parts of their data, as if it were from the whole. Sums add up. What errors
// cost is a mean over tokens: parts count by the tokens of their data, however many of them the model was asked about.
// So does what errors of a trial cost, where there is no model, though each part had a trial of its own. Of the rows
// those stay that have one density over all of the data.
#pragma once

#include <string>
#include <vector>

#include "fit/coded_fit.hpp"

namespace oscar {

/// A part, and its name for errors.
struct CodedPart {
  std::string name;
  CodedData data;
};

/// Adds them up in the order of their data's hashes. At least one. Throws DataError that names two parts and what
/// differs: models, windows, how they were taken, layers, heads; or the same data twice.
[[nodiscard]] CodedData merge_coded_data(std::vector<CodedPart> parts);

}  // namespace oscar
