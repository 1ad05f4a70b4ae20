// SPDX-License-Identifier: MIT
// One side of a set as a .pt file: format version 1 (one matrix per layer) or 2 (one per KV head), float32.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "rotation/formats.hpp"
#include "tensor/pt.hpp"

namespace oscar {

/// Layers in the order given. Sides without eigenvalues are not written (std::logic_error).
void write_rotation_pt(const std::filesystem::path& path, const std::string& objective,
                       const std::vector<std::pair<int, const SideTransform*>>& layers);

}  // namespace oscar
