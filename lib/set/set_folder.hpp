// SPDX-License-Identifier: MIT
// A set's folder, written and read as a whole.
#pragma once

#include <filesystem>
#include <functional>

#include "set/formats.hpp"
#include "set/set.hpp"

namespace oscar {

/// Writes the folder whole or not at all, with serve.env beside the rotations that a server of OSCAR's reads. replace:
/// a folder that holds a set of ours and nothing else may be there; otherwise that is a UsageError.
void write_set(const std::filesystem::path& folder, const Set& set, const RotationFormats& formats, bool replace);

/// Whether the caller compares the files of a folder itself with what its manifest says.
enum class ListedFiles { kCheck, kChecked };

/// Reads a set's folder: the schema, sizes and hashes of all listed files, and that all files say one thing, whichever
/// the part (set/one_truth.hpp). kChecked: neither is looked at. A folder of bare .pt files of others is a set with one
/// part, kRotationsName, and no manifest. Throws DataError.
[[nodiscard]] Set read_set(const std::filesystem::path& folder, ListedFiles listed = ListedFiles::kCheck);

/// What callers look at a stranger's set with; throws DataError for one that is not to be used.
using ExamineSet = std::function<void(const std::filesystem::path& folder)>;

}  // namespace oscar
