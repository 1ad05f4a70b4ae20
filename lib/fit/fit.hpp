// SPDX-License-Identifier: MIT
// The method: what was taken of Q/K/V (fit/take.hpp, or several such files added up) becomes a set with the parts that
// readers read. Paper of the rotations: OSCAR (arXiv 2605.17757); published fitter: rotation/compute_kv_rotation.py.
// The same input gives the same bits, whatever the number of threads.
#pragma once

#include <optional>
#include <string>

#include "base/status.hpp"
#include "dump/source.hpp"
#include "fit/options.hpp"
#include "kernels/backend.hpp"
#include "moments/statistics.hpp"
#include "set/set.hpp"

namespace oscar {

/// Rows per channel that a covariance should have: its directions are then known to about a quarter.
inline constexpr int kRowsPerChannel = 16;

/// What to tell the user if the matrices of a plan would be fitted on fewer rows, with the number of tokens that would
/// do: a matrix of a layer gets a row per token and KV head, a matrix of a head a row per token. Nothing if the source
/// does not say how many tokens it has, or the plan looks at no data.
[[nodiscard]] std::optional<std::string> too_few_tokens(const QkvSource& source, const FitPlan& plan);

/// What to tell the user if a set of these layers would lack some that its model needs, which no check lets pass.
[[nodiscard]] std::optional<std::string> too_few_layers(const ModelIdentity& model, const std::vector<int>& layers);

/// Does a little of what fits do, for nothing. At once on the CPU.
void warm_up(Backend& backend);

/// Fits all parts. A part of recipe auto that the statistics do not suffice for is left out, with a notice, unless its
/// readers were named. Throws UsageError as plan_parts() does, or for other windows than those of the statistics;
/// DataError that says which sums are missing, or which layers were taken of other data.
[[nodiscard]] Set fit(const Statistics& statistics, const FitOptions& options, Backend& backend, Status& status);

}  // namespace oscar
