// SPDX-License-Identifier: MIT
// The files of a dump: one tensor each, in one of three formats told apart by their suffix. A .pt file holds a bare
// tensor, a .h5 file the dataset /<what>, a .safetensors file the tensor <what>, where what is q, k, v or seq_lens.
// Payloads are contiguous in all three, so that readers can map them or read them at their offset. And what a manifest
// remembers of them, so that others in their place are noticed before their bytes are taken for what the manifest says:
// sizes, hashes of samples that every reader compares, and hashes of whole files.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "tensor/tensor.hpp"

namespace oscar {

/// The suffixes of chunks, in the order in which a folder is searched for them.
inline constexpr std::array<std::string_view, 3> kChunkSuffixes{".pt", ".h5", ".safetensors"};

/// One tensor inside one file.
struct ChunkTensor {
  std::filesystem::path file;
  TensorLocation location;
  Json record = {};  // of the manifest; null: there is none
};

struct DumpChunk {
  int number = 0;
  ChunkTensor q, k, v;
  std::vector<std::int64_t> seq_lens;  // sums to the chunk's tokens
  [[nodiscard]] std::int64_t tokens() const { return q.location.shape[0]; }
};

/// "pt", "h5" or "safetensors" -> ".pt" …; throws UsageError that lists them.
[[nodiscard]] std::string chunk_suffix(std::string_view format);

/// Tells where the tensor of a chunk lies in its file, without reading the payload. Throws DataError: missing,
/// truncated, no such tensor, not contiguous (h5: chunked or compressed).
[[nodiscard]] TensorLocation locate_chunk(const std::filesystem::path& file, const std::string& what);
[[nodiscard]] Tensor read_chunk(const std::filesystem::path& file, const std::string& what);
/// Writes the tensor as a file of the format that the suffix names, atomically.
void write_chunk(const std::filesystem::path& file, const std::string& what, const Tensor& tensor);

/// Says in words what a file of this chunk is for. Its hashes cover them, so that a file in the place of another
/// differs. what: q, k or v.
[[nodiscard]] std::string role_of(int layer_id, const DumpChunk& chunk, const char* what);

/// Returns the record of a file that was just written: its size, and hashes of its frame, of pages, and of all bytes.
[[nodiscard]] Json record_file(const ChunkTensor& tensor, const std::string& role);
/// Returns the record of a small file: its size, and the hash of all bytes.
[[nodiscard]] Json record_small_file(const std::filesystem::path& file);

/// Looks at a file on disk, in time that does not grow with it. Throws DataError, which names what differs, unless its
/// size, its header, what follows its payload, and 16 pages of the payload are those recorded.
void require_recorded(const ChunkTensor& tensor, const std::string& role, const char* what);
void require_recorded_small_file(const std::filesystem::path& file, const Json& record);

/// Reads a whole file on disk. Throws DataError unless every byte is as recorded; does nothing without a record.
void require_unchanged(const ChunkTensor& tensor);

/// Returns the names of what lies in a folder; none of what is no folder.
[[nodiscard]] std::vector<std::string> names_in(const std::filesystem::path& folder);
/// Numbers n with `folder`/<prefix>n<suffix>, ascending; none of what is no folder.
[[nodiscard]] std::vector<int> numbered_entries(const std::filesystem::path& folder, std::string_view prefix,
                                                std::string_view suffix);

}  // namespace oscar
