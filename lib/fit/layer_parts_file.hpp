// SPDX-License-Identifier: MIT
// What a search takes of a layer, in a file, so that an interrupted search goes on without reading the layer again.
#pragma once

#include <filesystem>

#include "fit/layer_data.hpp"

namespace oscar {

/// Writes safetensors with checksums. Throws IoError.
void write_parts(const std::filesystem::path& path, const LayerParts& parts);
/// Reads the same bits back. Throws DataError for a damaged file or one of another layer.
[[nodiscard]] LayerParts read_parts(const std::filesystem::path& path, int layer_id);

}  // namespace oscar
