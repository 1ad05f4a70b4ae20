// SPDX-License-Identifier: MIT
// Rotation sets on disk. Ours is a folder: manifest.json (oscar.rotation_set.v1), k_rotation_<objective>.pt and
// v_rotation_<objective>.pt (format v1, float32, loaded unmodified by SGLang), rotations.h5, optionally
// rotations.safetensors, and serve.env. Foreign ones are bare .pt files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "rotation/rotation_set.hpp"

namespace oscar {

struct RotationFormats {
  bool pt = true, h5 = true, safetensors = false;
};

/// Writes the set as a folder, atomically. replace: an existing folder is swapped out; otherwise it is a UsageError.
void write_rotation_set(const std::filesystem::path& folder, const RotationSet& set, const RotationFormats& formats,
                        bool replace);

/// Reads a folder (hashes and sizes of every listed file are checked) or a bare folder with one k_rotation*.pt and one
/// v_rotation*.pt. Throws DataError.
[[nodiscard]] RotationSet read_rotation_set(const std::filesystem::path& path);

/// One side of a foreign set: a .pt file of format v1 or v2.
struct RotationFile {
  std::string objective;
  std::vector<std::pair<int, SideTransform>> layers;  // ascending
};
[[nodiscard]] RotationFile read_rotation_pt(const std::filesystem::path& path);

}  // namespace oscar
