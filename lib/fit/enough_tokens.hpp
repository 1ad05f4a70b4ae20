// SPDX-License-Identifier: MIT
// Whether there is enough data for directions that are the model's rather than chance's.
#pragma once

#include <optional>
#include <string>

#include "dump/source.hpp"
#include "fit/options.hpp"

namespace oscar {

/// Rows per channel that a covariance should have: its directions are then known to about a quarter.
inline constexpr int kRowsPerChannel = 16;

/// What to tell the user if the matrices of `options` would be fitted on fewer rows, with the number of tokens that
/// would do: a matrix of a layer gets a row per token and KV head, a matrix of a head a row per token. Nothing if the
/// source does not say how many tokens it has, or the recipe looks at no data.
[[nodiscard]] std::optional<std::string> too_few_tokens(const QkvSource& source, const FitOptions& options);

}  // namespace oscar
