// SPDX-License-Identifier: MIT
// The files of a dump: one tensor each, in one of three formats told apart by their suffix. A .pt file holds a bare
// tensor, a .h5 file the dataset /<what>, a .safetensors file the tensor <what>, where what is q, k, v or seq_lens.
// Payloads are contiguous in all three, so that readers can map them or read them at their offset. And what a manifest
// remembers of them, so that others in their place are noticed before their bytes are taken for what the manifest says:
// sizes, hashes of samples that every reader compares, and hashes of whole files.
//
// What a dump folder holds: layer_<id>/{q,k,v,seq_lens}/<chunk>.pt (or .h5, .safetensors), tensors
// q [T, Hq, d], k and v [T, Hkv, d], and int32 sequence lengths. Our own dumps have a manifest.json (oscar.dump.v1)
// that tells where payloads lie, so that libtorch is not needed to read them; in the published layout every file is
// looked at. Non-goal: reading payloads.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "base/status.hpp"
#include "model/config/identity.hpp"
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
/// Writes the tensor as a file of the format that the suffix names, atomically.
void write_chunk(const std::filesystem::path& file, const std::string& what, const Tensor& tensor);

/// Says in words what a file of this chunk is for. Its hashes cover them, so that a file in the place of another
/// differs. what: q, k or v.
[[nodiscard]] std::string role_of(int layer_id, const DumpChunk& chunk, const char* what);

/// Returns the record of a file that was just written: its size, and hashes of its frame, of pages, and of all bytes.
[[nodiscard]] Json record_file(const ChunkTensor& tensor, const std::string& role);
/// Returns the record of a small file: its size, and the hash of all bytes.
[[nodiscard]] Json record_small_file(const std::filesystem::path& file);

/// Reads a whole file on disk. Throws DataError unless every byte is as recorded; does nothing without a record.
void require_unchanged(const ChunkTensor& tensor);

/// Returns the names of what lies in a folder; none of what is no folder.
[[nodiscard]] std::vector<std::string> names_in(const std::filesystem::path& folder);
/// Returns the number in the name of an entry of a dump; nothing if it is none. Throws DataError for leading zeros,
/// with which two names would be of one number.
[[nodiscard]] std::optional<int> parse_entry_number(std::string_view digits, const std::filesystem::path& entry);
/// Numbers n with `folder`/<prefix>n<suffix>, ascending; none of what is no folder. Throws as parse_entry_number().
[[nodiscard]] std::vector<int> numbered_entries(const std::filesystem::path& folder, std::string_view prefix,
                                                std::string_view suffix);

/// Ascending; all if none are wanted. Throws UsageError for one that the dump does not have.
[[nodiscard]] std::vector<int> chosen_layers(const std::vector<int>& all, std::vector<int> wanted,
                                             const std::filesystem::path& dump);

class DumpIndex {
 public:
  /// Throws DataError: missing folder, no layers, a manifest that does not fit.
  explicit DumpIndex(std::filesystem::path folder);
  /// Indexes what lies in other folders, without a manifest: what one rank of a server wrote.
  DumpIndex(std::vector<int> layer_ids, std::function<std::filesystem::path(int layer_id)> layer_folder);
  DumpIndex(const DumpIndex&) = delete;  // the path of a layer refers to it
  DumpIndex& operator=(const DumpIndex&) = delete;

  [[nodiscard]] const std::filesystem::path& folder() const noexcept { return folder_; }
  /// Returns the manifest; null if the dump is in the published layout, which has none.
  [[nodiscard]] const Json& manifest() const noexcept { return manifest_; }
  /// Ascending; possibly sparse.
  [[nodiscard]] const std::vector<int>& layer_ids() const noexcept { return layer_ids_; }
  /// The chunks of a layer in ascending order, checked: shapes, types, token counts, sequence lengths, file sizes, and
  /// that the files are those of the manifest, and no others. A tiny chunk 0 of the
  /// published layout (a warm-up) is left out with a notice. Throws DataError.
  [[nodiscard]] std::vector<DumpChunk> chunks(int layer_id, Status& status) const;

 private:
  std::filesystem::path folder_;
  Json manifest_;
  std::vector<int> layer_ids_;
  std::function<std::filesystem::path(int)> layer_folder_;
};

}  // namespace oscar
