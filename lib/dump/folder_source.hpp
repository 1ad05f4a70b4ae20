// SPDX-License-Identifier: MIT
// A dump folder as a QkvSource. Chunks are mapped, one at a time: memory is one chunk, whatever the dump's size.
// Non-goal: dumps at addresses.
//
// And writes a source of q, k and v as a dump in the published layout: layer_<id>/{q,k,v,seq_lens}/<chunk>.pt (or .h5,
// .safetensors), tensors in the source's type, int32 lengths, chunks from 1, and manifest.json (oscar.dump.v1). The
// folder appears whole or not at all. Memory: what the source holds, and a copy of one chunk.
#pragma once

#include <cstdint>
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

struct DumpSummary {
  DType dtype = DType::kF32;
  std::int64_t layers = 0, chunks = 0, tokens = 0;  // chunks and tokens of each layer
  std::uint64_t bytes = 0;                          // of all files
};

/// format: "pt", "h5" or "safetensors"; throws UsageError for another. replace: an existing folder is swapped out;
/// otherwise it is a UsageError. Throws IoError (for example: disk full), Interrupted between chunks, and what the
/// source throws.
DumpSummary write_dump(QkvSource& source, const std::filesystem::path& folder, const std::string& format, bool replace,
                       Status& status);

}  // namespace oscar
