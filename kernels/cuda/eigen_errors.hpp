// SPDX-License-Identifier: MIT
// What eigh() computes itself: how well a solver's results solve their problems.
#pragma once

#include <vector>

#include "kernels/cuda/device_buffer.hpp"

namespace oscar::cuda {

/// Symmetric matrices (count, dim, dim) and their eigenpairs: row j of vectors[i] belongs to values[i, j].
struct EigenBatch {
  int count, dim;
  DeviceBuffer<double> matrices, vectors, values;
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(dim) * dim; }
};

/// Returns for each problem the largest |A v - value v| relative to its largest |value|, or |<v_i, v_j> - (i == j)| if
/// that is more; infinite if anything is NaN or the values do not ascend.
[[nodiscard]] std::vector<double> eigen_errors(const Context& context, const EigenBatch& batch);

/// Vectors as columns replace the matrices.
void transpose_vectors(const Context& context, EigenBatch& batch);

}  // namespace oscar::cuda
