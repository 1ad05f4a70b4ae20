// SPDX-License-Identifier: MIT
// The search for one head's rotation R0 exp(A - A^T): Adam over A, from A = 0. The last quarter of the sequences is
// held out: only a rotation with a smaller loss there takes the place of R0.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "codec/optr/fit.hpp"
#include "codec/optr/loss.hpp"

namespace oscar::optr {

/// Returns the loss of one sequence under a rotation (dim, dim). Called concurrently.
using LossOf = std::function<Loss(std::size_t sequence, std::span<const float> rotation)>;

/// start: R0 (dim, dim); sequences: two or more. The rotation, and the losses that decided.
[[nodiscard]] std::pair<std::vector<float>, OptrHead> descend(const LossOf& loss, std::span<const double> start,
                                                              std::size_t dim, std::size_t sequences,
                                                              const OptrOptions& options);

}  // namespace oscar::optr
