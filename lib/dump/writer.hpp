// SPDX-License-Identifier: MIT
// Writes a source of q, k and v as a dump in the published layout: layer_<id>/{q,k,v,seq_lens}/<chunk>.pt (or .h5,
// .safetensors), tensors in the source's type, int32 lengths, chunks from 1, and manifest.json (oscar.dump.v1). The
// folder appears whole or not at all. Memory: what the source holds, and a copy of one chunk.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/status.hpp"
#include "dump/source.hpp"

namespace oscar {

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
