// SPDX-License-Identifier: MIT
// A set's folder, written and read as a whole.
// It says many things twice: the manifest, the files of its parts, those that servers load, clip tables, serve.env.
// Whoever can write one file can write all hashes, so hashes do not prove that these agree. Here what follows from the
// manifest and the matrices is made again and compared with what lies there.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "set/formats.hpp"
#include "set/set.hpp"

namespace oscar {

/// Writes the folder whole or not at all, with serve.env beside the rotations that a server of OSCAR's reads. replace:
/// a folder that holds a set of ours and nothing else may be there; otherwise that is a UsageError.
void write_set(const std::filesystem::path& folder, const Set& set, const RotationFormats& formats, bool replace);

/// Whether the caller compares the files of a folder itself with what its manifest says.
enum class ListedFiles { kCheck, kChecked };

/// Reads a set's folder: the schema, sizes and hashes of all listed files, and that all files say one thing, whichever
/// the part. kChecked: neither is looked at. A folder of bare .pt files of others is a set with one
/// part, kRotationsName, and no manifest. Throws DataError.
[[nodiscard]] Set read_set(const std::filesystem::path& folder, ListedFiles listed = ListedFiles::kCheck);

/// What callers look at a stranger's set with; throws DataError for one that is not to be used.
using ExamineSet = std::function<void(const std::filesystem::path& folder)>;

/// Returns a clause for each thing that the manifest of `set` says of its parts, or of itself twice, and that is not
/// so: layers that stand once and within the model, numbers of heads, dimensions, summaries of eigenvalues, bits and
/// bytes of codes, the codec, and which part each reader reads.
[[nodiscard]] std::vector<std::string> manifest_disagreements(const Set& set);

/// Returns a clause, file first, for each thing in `folder` that does not follow from `set`, which was read from it. An
/// empty list means that the folder says one thing. Only files that are there are compared; one that the manifest does
/// not list is named, too.
[[nodiscard]] std::vector<std::string> disagreements(const std::filesystem::path& folder, const Set& set);

}  // namespace oscar
