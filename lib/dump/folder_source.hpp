// SPDX-License-Identifier: MIT
// A dump folder as a QkvSource. Chunks are mapped, one at a time: memory is one chunk, whatever the dump's size.
// Non-goal: dumps at addresses.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.hpp"
#include "dump/source.hpp"

namespace oscar {

/// Opens a dump. Throws DataError (see DumpIndex), and UsageError for an address, or if limits name a layer that the
/// dump does not have.
[[nodiscard]] std::unique_ptr<QkvSource> open_dump(const std::filesystem::path& folder, const SourceLimits& limits,
                                                   Status& status);

}  // namespace oscar
