// SPDX-License-Identifier: MIT
// A dump folder as a QkvSource. Chunks are mapped, one at a time: memory is one chunk, whatever the dump's size.
// Non-goal: dumps at addresses.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "base/status.hpp"
#include "dump/source.hpp"

namespace oscar {

/// Opens a dump. Throws DataError (see DumpIndex), and UsageError for an address, or if limits name a layer that the
/// dump does not have.
[[nodiscard]] std::unique_ptr<QkvSource> open_dump(const std::filesystem::path& folder, const SourceLimits& limits,
                                                   Status& status);

/// Returns a fingerprint of each layer's files, for every layout that open_dump() reads: of the names, the sizes and
/// the last 4 KB of files, where archives keep their directory with its checksums; "" for a layer without files. It
/// tells whether layers are what they were without reading them, and does not find damage. Throws IoError.
[[nodiscard]] std::map<int, std::string> fingerprint_layers(const std::filesystem::path& dump,
                                                            std::span<const int> layer_ids);

}  // namespace oscar
