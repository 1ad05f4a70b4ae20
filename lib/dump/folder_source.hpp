// SPDX-License-Identifier: MIT
// A dump folder as a QkvSource. Chunks are mapped, one at a time: memory is one chunk, whatever the dump's size. Those
// of a dump at a server (base/places.hpp) come as remote_chunks.hpp says, with 2 GiB of memory.
#pragma once

#include <filesystem>
#include <memory>

#include "base/status.hpp"
#include "dump/source.hpp"

namespace oscar {

/// folder: a path or an address. Throws DataError (see DumpIndex), UsageError if limits name a layer that the dump does
/// not have.
[[nodiscard]] std::unique_ptr<QkvSource> open_dump(const std::filesystem::path& folder, const SourceLimits& limits,
                                                   Status& status);

}  // namespace oscar
