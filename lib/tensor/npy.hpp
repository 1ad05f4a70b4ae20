// SPDX-License-Identifier: MIT
// NumPy .npy files, versions 1 to 3, little-endian, C order; float and integer types.
#pragma once

#include <filesystem>

#include "tensor/tensor.hpp"

namespace oscar {

/// Throws DataError: missing, truncated, big-endian, Fortran order, unknown type.
[[nodiscard]] Tensor read_npy(const std::filesystem::path& path);
/// Writes atomically (version 1.0).
void write_npy(const std::filesystem::path& path, const Tensor& tensor);

}  // namespace oscar
