// SPDX-License-Identifier: MIT
// What the parts of the benchmark of the CUDA backend share.
#pragma once

#include <cstddef>
#include <functional>

#include "base/json.hpp"
#include "kernels/backend.hpp"

namespace oscar {

[[nodiscard]] double milliseconds(const std::function<void()>& task);

/// Median of `repeats` calls after a first one. bytes: read from the host; flops: of the products as they are done.
[[nodiscard]] Json measure(std::size_t bytes, double flops, const std::function<void()>& task, int repeats = 9);

/// Symmetric matrices with well separated eigenvalues.
[[nodiscard]] MatrixStack covariances(int count, int dim);

/// Held sequences: the clip sweep of one layer, and attention.
[[nodiscard]] Json measure_sequences(Backend& backend);

}  // namespace oscar
