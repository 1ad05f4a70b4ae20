// SPDX-License-Identifier: MIT
// A set says many things twice: the manifest, the files of its parts, those that servers load, clip tables, serve.env.
// Whoever can write one file can write all hashes, so hashes do not prove that these agree. Here what follows from the
// manifest and the matrices is made again and compared with what lies there.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "set/set.hpp"

namespace oscar {

/// Returns a clause for each thing that the manifest of `set` says of its parts, or of itself twice, and that is not
/// so: layers that stand once and within the model, numbers of heads, dimensions, summaries of eigenvalues, bits and
/// bytes of codes, the codec, and which part each reader reads.
[[nodiscard]] std::vector<std::string> manifest_disagreements(const Set& set);

/// Returns a clause, file first, for each thing in `folder` that does not follow from `set`, which was read from it. An
/// empty list means that the folder says one thing. Only files that are there are compared; one that the manifest does
/// not list is named, too.
[[nodiscard]] std::vector<std::string> disagreements(const std::filesystem::path& folder, const Set& set);

}  // namespace oscar
