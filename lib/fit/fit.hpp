// SPDX-License-Identifier: MIT
// The method: from Q/K/V to rotations and clip ratios. Memory is one chunk of the source plus moments. Paper: OSCAR
// (arXiv 2605.17757); published fitter: rotation/compute_kv_rotation.py. The same input gives the same bits, whatever
// the number of threads.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "fit/fitted_layer.hpp"
#include "fit/kept_layers.hpp"
#include "fit/layer_data.hpp"
#include "fit/options.hpp"
#include "kernels/backend.hpp"
#include "moments/statistics.hpp"
#include "set/rotation_part.hpp"

namespace oscar {

/// Rows per channel that a covariance should have: its directions are then known to about a quarter.
inline constexpr int kRowsPerChannel = 16;

/// What to tell the user if the matrices of `options` would be fitted on fewer rows, with the number of tokens that
/// would do: a matrix of a layer gets a row per token and KV head, a matrix of a head a row per token. Nothing if the
/// source does not say how many tokens it has, or the recipe looks at no data.
[[nodiscard]] std::optional<std::string> too_few_tokens(const QkvSource& source, const FitOptions& options);

/// Does a little of what fits do, for nothing. At once on the CPU.
void warm_up(Backend& backend);

struct FitResult {
  RotationPart set;
  /// Wall time of the whole fit.
  double seconds = 0;
};

/// What a candidate does to the model: mean KL of its predictions on held-out sequences, and the share of the probes'
/// answers that it finds, with the standard error of that: not a number for a candidate that was not asked for them.
struct ModelScore {
  double kld = 0, probe = 0, probe_error = 0;
};
/// Runs the model with each set; an empty function if there is no model.
using ModelJudge = std::function<std::vector<ModelScore>(std::span<const RotationPart>)>;

/// What a caller adds to a fit; each may be empty.
struct FitHooks {
  /// Judges the candidates of recipe auto.
  ModelJudge judge = {};
  /// Where layers are kept as soon as they are fitted, and where those that are there already are taken from. Recipe
  /// auto, which decides by all layers together, keeps what it looks at again of each: sums and samples.
  const PartialFolder* kept = nullptr;
};

/// Fits a set. Throws UsageError for options that do not exist or do not fit together, before anything is read;
/// DataError for bad data.
[[nodiscard]] FitResult fit(QkvSource& source, const FitOptions& options, Backend& backend, Status& status,
                            const FitHooks& hooks = {});

// Fits by statistics: sums over parts of the data are taken layer by layer and kept, added up (moments/statistics.hpp),
// and made into rotations once. Clip ratios and recipe auto look at rows, which statistics do not keep.

/// Returns the recipe, if sums are all that it needs; throws UsageError if it looks at rows.
[[nodiscard]] Recipe recipe_of_sums(const FitOptions& options);

/// Takes the sums of all layers. first_pass: null for the first pass; or the sums of all data's first passes, for kSst
/// alone. folder: where layers that are there already are taken from, and the others kept, a file of statistics each;
/// or null. Throws UsageError for recipes that need rows, DataError if the first pass is not of this data.
[[nodiscard]] Statistics take_statistics(QkvSource& source, const FitOptions& options, const Statistics* first_pass,
                                         const PartialFolder* folder, Backend& backend, Status& status);

/// Throws UsageError for recipes that need rows, DataError that says which sums are missing and how to take them, or
/// which layers were taken of other data.
[[nodiscard]] FitResult fit(const Statistics& statistics, const FitOptions& options, Backend& backend, Status& status);

}  // namespace oscar
