// SPDX-License-Identifier: MIT
// What a manifest remembers of a chunk's files, so that others in their place are noticed before their bytes are taken
// for what the manifest says: sizes, hashes of samples that every reader compares, and hashes of whole files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "base/json.hpp"
#include "dump/dump_index.hpp"

namespace oscar {

class PlacedFile;

/// What a file of this chunk is for, in words that its hashes cover: a file in the place of another is another one.
/// what: q, k or v.
[[nodiscard]] std::string role_of(int layer_id, const DumpChunk& chunk, const char* what);

/// Of a file that was just written.
[[nodiscard]] Json record_file(const ChunkTensor& tensor, const std::string& role);
/// The same of a file that is small, by its whole content.
[[nodiscard]] Json record_small_file(const std::filesystem::path& file);

/// On disk, in time that does not grow with the file: that its size, its header, what follows its payload, and 16 pages
/// of that are those recorded; or, in a manifest without records, that its own header says what the manifest says.
/// Throws DataError that names what differs.
void require_recorded(const ChunkTensor& tensor, const std::string& role, const char* what);
void require_recorded_small_file(const std::filesystem::path& file, const Json& record);

/// At a server, after the rows were read, without another request: its size, and its pages where all rows are there.
void require_recorded(const ChunkTensor& tensor, const PlacedFile& file, std::span<const std::byte> rows);

/// Every byte of a file on disk is as recorded, where there is a record. Throws DataError.
void require_unchanged(const ChunkTensor& tensor);

}  // namespace oscar
