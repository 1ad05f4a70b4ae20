// SPDX-License-Identifier: MIT
// What a fit takes from the rows of a layer: moments, by one walk over the rows and a second one for those that need
// finished sums, and samples of rows.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "dump/source.hpp"
#include "fit/held_out.hpp"
#include "kernels/backend.hpp"
#include "method/solve.hpp"
#include "moments/sample.hpp"
#include "moments/take.hpp"

namespace oscar {

/// What is to be taken of each layer.
struct TakePlan {
  /// The moments that any recipe needs which will be fitted to the layer.
  std::set<Moment> moments;
  Windows windows;
  /// What clip ratios are fitted on; none: they are not.
  std::optional<SampleOptions> clip = {};
};

struct LayerData {
  LayerMoments moments;
  std::vector<SampledSequence> clip;
};

/// Takes the moments. Throws DataError for a layer without tokens, and what take() throws.
[[nodiscard]] LayerMoments take_moments(int layer_id, LayerStream& rows, const TakePlan& plan, Backend& backend);
/// Takes the sample.
void take_samples(LayerStream& rows, const TakePlan& plan, LayerData& data);

/// Returns the means of sums; windows: those of kFisher.
[[nodiscard]] LayerMoments moments_of(int layer_id, int key_dim, int value_dim, const AdditiveMoments& sums,
                                      Windows windows);

/// A layer for a search: what candidates are fitted on, what the choice is fitted on, and what they are judged on.
struct LayerParts {
  LayerData part, whole;                // without and with the sequences that are held out
  std::vector<SampledSequence> judged;  // from those that are held out
};

/// Reads a layer once for both parts. judging: of the sequences that candidates are judged on. Throws TooLittleData.
[[nodiscard]] LayerParts take_parts(int layer_id, LayerStream& rows, const TakePlan& plan, HeldOutSplit split,
                                    const SampleOptions& judging, Backend& backend);

}  // namespace oscar
