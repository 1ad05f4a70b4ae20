// SPDX-License-Identifier: MIT
// What every backend does with its arguments before and after the arithmetic: checks, defaults, and sums of symmetric
// results. Non-goal: arithmetic that a backend could do differently.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/types.hpp"

namespace oscar {

/// Throws UsageError if levels, group size and head_dim do not fit together; returns the size of a group.
[[nodiscard]] int checked_group_size(const RowCodec& codec, int head_dim);
/// Index of the clip threshold among the magnitudes in ascending order.
[[nodiscard]] int clip_rank(double clip_ratio, int head_dim);

/// Positions of the queries among the keys, given or implied.
[[nodiscard]] std::vector<std::int64_t> resolve_positions(const MixedAttention& mixed);
/// Throws std::logic_error if shapes or positions do not fit together.
void check_mixed(const MixedAttention& mixed);
/// Likewise for what compare_attention() compares.
void check_exact(const QkvView& exact, const MixedAttention& mixed);

/// Throws NumericalError if an entry of an eigenproblem is not finite.
void check_finite(std::span<const double> symmetric);

/// Adds the upper triangle of `partial` (dim, dim) to both triangles of `gram`.
void add_symmetric(std::span<const double> partial, std::span<double> gram, int dim);

}  // namespace oscar
