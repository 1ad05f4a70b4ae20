// SPDX-License-Identifier: MIT
// What recipes get of a layer: finished sums, and samples of rows, also of the parts of its sequences that a search
// fits on and judges on, which a file keeps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/errors.hpp"
#include "dump/source.hpp"
#include "kernels/backend.hpp"
#include "method/solve.hpp"
#include "moments/sample.hpp"
#include "moments/take.hpp"

namespace oscar {

/// There is not enough to fit on one part and to judge on another.
struct TooLittleData : DataError {
  using DataError::DataError;
};

class HeldOutSplit {
 public:
  /// Throws TooLittleData if there are fewer than two sequences.
  explicit HeldOutSplit(std::int64_t num_sequences)
      : stride_(static_cast<std::size_t>(std::clamp<std::int64_t>(num_sequences, 1, 3))) {
    if (num_sequences >= 2) return;
    throw TooLittleData("the held-out set is empty: there is only one sequence to calibrate on", "--recipe auto",
                        "give at least two sequences (a smaller --seq-len cuts a long text), or choose a recipe");
  }

  /// Whether a sequence, counted from 0, is one that candidates are judged on.
  [[nodiscard]] bool held_out(std::size_t sequence) const { return sequence % stride_ == stride_ - 1; }

 private:
  std::size_t stride_;
};

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
/// Takes the sample, from the sequences that `takes` says.
void take_samples(LayerStream& rows, const TakePlan& plan, LayerData& data, const TakesSequence& takes = {});

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

/// Writes safetensors with checksums. Throws IoError.
void write_parts(const std::filesystem::path& path, const LayerParts& parts);
/// Reads the same bits back. Throws DataError for a damaged file or one of another layer.
[[nodiscard]] LayerParts read_parts(const std::filesystem::path& path, int layer_id);

}  // namespace oscar
