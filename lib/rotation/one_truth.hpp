// SPDX-License-Identifier: MIT
// A set's folder says many things twice: the manifest, the attributes of rotations.h5, the .pt files that servers load,
// clip tables, serve.env. Whoever can write one file can write all hashes, so hashes do not prove that these agree.
// Here what follows from the manifest and the matrices is made again and compared with what lies there.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "rotation/rotation_set.hpp"

namespace oscar {

/// What in `folder` does not follow from `set`, which was read from it: one clause each, file first. Empty: the folder
/// says one thing. Files are compared that are there; one that the manifest does not list is named, too.
[[nodiscard]] std::vector<std::string> disagreements(const std::filesystem::path& folder, const RotationSet& set);

/// Throws DataError with the first of disagreements().
void require_one_truth(const std::filesystem::path& folder, const RotationSet& set);

/// Reads the set in `folder`, checks all hashes, and requires one truth: for who takes a stranger's set in. Throws
/// DataError.
void require_sound_set(const std::filesystem::path& folder);
/// Such a look at a set.
using ExamineSet = std::function<void(const std::filesystem::path& folder)>;

/// The same for what a manifest says of matrices: layers that stand once, within the model, with its numbers of heads
/// and dimensions, and the eigenvalue summaries.
[[nodiscard]] std::vector<std::string> manifest_disagreements(const RotationSet& set);

}  // namespace oscar
