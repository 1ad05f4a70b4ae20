// SPDX-License-Identifier: MIT
// NumPy .npy files, versions 1 to 3, little-endian, C order; float and integer types.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "tensor/tensor.hpp"

namespace oscar {

/// Reads a .npy file. Throws DataError: missing, truncated, big-endian, Fortran order, unknown type.
[[nodiscard]] Tensor read_npy(const std::filesystem::path& path);
/// Reads a file's bytes as read_npy() does. where: names them in errors.
[[nodiscard]] Tensor parse_npy(std::span<const std::byte> file, const std::string& where);

}  // namespace oscar
