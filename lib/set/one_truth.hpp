// SPDX-License-Identifier: MIT
// A set's folder says many things twice: the manifest, the attributes of rotations.h5, the .pt files that servers load,
// clip tables, serve.env. Whoever can write one file can write all hashes, so hashes do not prove that these agree.
// Here what follows from the manifest and the matrices is made again and compared with what lies there.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "set/rotation_part.hpp"

namespace oscar {

/// Returns a clause for each thing that the manifest of `set` says of its matrices, or of itself twice, and that is not
/// so: layers that stand once and within the model, numbers of heads, dimensions, summaries of eigenvalues, the codec.
[[nodiscard]] std::vector<std::string> manifest_disagreements(const RotationPart& set);

/// Returns a clause, file first, for each thing in `folder` that does not follow from `set`, which was read from it. An
/// empty list means that the folder says one thing. Only files that are there are compared; one that the manifest does
/// not list is named, too.
[[nodiscard]] std::vector<std::string> disagreements(const std::filesystem::path& folder, const RotationPart& set);

/// Throws DataError with the first of disagreements().
void require_one_truth(const std::filesystem::path& folder, const RotationPart& set);

/// Reads the set in `folder`, checks all hashes, and requires one truth: for who takes a stranger's set in. Throws
/// DataError.
void require_sound_set(const std::filesystem::path& folder);
/// A function like require_sound_set(), for callers that let others choose how a set is looked at.
using ExamineSet = std::function<void(const std::filesystem::path& folder)>;

}  // namespace oscar
