// SPDX-License-Identifier: MIT
// Which tokens a dump is of, as its chunks tell. For lib/dump only.
#pragma once

#include <string>
#include <vector>

#include "dump/dump_index.hpp"

namespace oscar {

/// A fingerprint of a foreign dump: names, sizes and the last 4 KB (which hold the archive's directory with its
/// checksums). It tells which tokens they are, and stands in published sets: one layer is enough, and must stay the
/// first. Whether other layers are what they were is told by layer_fingerprints.hpp.
[[nodiscard]] std::string fingerprint(const std::vector<DumpChunk>& chunks, int layer_id);

/// CalibrationData::blocks of the sequences that limits leave of `whole`; a block that is cut is not there.
[[nodiscard]] std::vector<std::string> blocks_of(std::vector<std::string> whole, const std::vector<DumpChunk>& chunks);

/// All layers of a dump are of the same tokens. Throws DataError that names the first chunk that differs.
void require_same_tokens(const std::vector<DumpChunk>& chunks, const std::vector<DumpChunk>& of_first_layer);

}  // namespace oscar
