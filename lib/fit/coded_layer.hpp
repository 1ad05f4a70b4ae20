// SPDX-License-Identifier: MIT
// What a fit of the coded cache takes from one layer's data, and what becomes of it once levels are planned.
#pragma once

#include <set>
#include <vector>

#include "coded/coded_set.hpp"
#include "dump/source.hpp"
#include "fit/error_cost.hpp"
#include "kernels/backend.hpp"
#include "method/coded_basis.hpp"
#include "method/coded_levels.hpp"

namespace oscar {

/// Keys, or values, of one layer: their basis, and a sample of their rows in it.
struct CodedSample {
  CodedBasis basis;
  std::vector<std::vector<float>> rows;  // [KV head] (n, d) in native coordinates
};

struct CodedLayerData {
  int layer_id = 0;
  CodedSample key, value;
};

/// How bases are chosen, and grids' rows.
struct CodedOptions {
  Windows windows;
  std::int64_t sample_rows = 4096;  // of each layer, from which grids are fitted
  /// Layers whose keys keep their mean, because a shift of all scores changes what their softmax gives (sinks, soft
  /// caps).
  std::set<int> uncentred;
};

/// Reads a layer twice: for its moments, and for `options.sample_rows` rows that are spread evenly over its tokens.
/// cost: of its rows; null: of a key, what the softmax feels, and of a value its squared error. Throws DataError if no
/// sequence is longer than the windows or head sizes are no multiples of 8.
[[nodiscard]] CodedLayerData take_coded_layer(int layer_id, LayerStream& stream, const CodedOptions& options,
                                              const ErrorCost* cost, Backend& backend);

/// The spectrum that levels of one side are planned by, with weight 1.
[[nodiscard]] CodedSpectrum spectrum_of(const CodedSample& sample, int layer_id, const std::string& side);

/// The side with these levels: its channels reordered, equal levels mixed, grids fitted to the sample, and all numbers
/// rounded to float32. Throws NumericalError that names a channel with levels which is constantly zero.
[[nodiscard]] CodedSide coded_side(const CodedSample& sample, const CodedLevels& levels);

}  // namespace oscar
