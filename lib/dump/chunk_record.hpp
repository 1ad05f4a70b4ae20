// SPDX-License-Identifier: MIT
// What a manifest remembers of a chunk's files, so that others in their place are noticed before their bytes are taken
// for what the manifest says: sizes, hashes of samples that every reader compares, and hashes of whole files.
#pragma once

#include <filesystem>
#include <string>

#include "base/json.hpp"
#include "dump/dump_index.hpp"

namespace oscar {

/// Says in words what a file of this chunk is for. Its hashes cover them, so that a file in the place of another
/// differs. what: q, k or v.
[[nodiscard]] std::string role_of(int layer_id, const DumpChunk& chunk, const char* what);

/// Returns the record of a file that was just written: its size, and hashes of its frame, of pages, and of all bytes.
[[nodiscard]] Json record_file(const ChunkTensor& tensor, const std::string& role);
/// Returns the record of a small file: its size, and the hash of all bytes.
[[nodiscard]] Json record_small_file(const std::filesystem::path& file);

/// Looks at a file on disk, in time that does not grow with it. Throws DataError, which names what differs, unless its
/// size, its header, what follows its payload, and 16 pages of the payload are those recorded. Without a record, the
/// file's own header must say what the manifest says.
void require_recorded(const ChunkTensor& tensor, const std::string& role, const char* what);
void require_recorded_small_file(const std::filesystem::path& file, const Json& record);

/// Reads a whole file on disk. Throws DataError unless every byte is as recorded; does nothing without a record.
void require_unchanged(const ChunkTensor& tensor);

}  // namespace oscar
