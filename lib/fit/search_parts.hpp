// SPDX-License-Identifier: MIT
// What the search over recipes keeps of a layer's data: all that it looks at again, so that a layer is read once, or,
// where it is kept in a file, by an earlier process.
#pragma once

#include <filesystem>
#include <vector>

#include "fit/candidates.hpp"
#include "fit/clip_choice.hpp"
#include "fit/held_out.hpp"

namespace oscar {

struct LayerParts {
  Fitting part, whole;                  // without and with what is held out
  std::vector<SampledSequence> judged;  // held out
};

/// What decides which parts are taken.
struct PartsPlan {
  const std::vector<Recipe>& recipes;
  const ClipChoice& clip;
  const FitOptions& options;
  const OutputProjection& output_projection;
  HeldOutSplit split;
};

/// Reads the layer. Throws TooLittleData.
[[nodiscard]] LayerParts take_parts(int layer_id, LayerStream& whole, const PartsPlan& plan, Backend& backend);
/// Of the sequences that candidates are judged on.
[[nodiscard]] ClipFitOptions judging_options(const FitOptions& options);

/// To one file, and the same bits back. Throws IoError; DataError for a damaged file or one of another layer.
void write_parts(const std::filesystem::path& path, const LayerParts& parts);
[[nodiscard]] LayerParts read_parts(const std::filesystem::path& path, int layer_id);

}  // namespace oscar
