// SPDX-License-Identifier: MIT
// What a dump folder holds: layer_<id>/{q,k,v,seq_lens}/<chunk>.pt (or .h5, .safetensors: chunk_file.hpp), tensors
// q [T, Hq, d], k and v [T, Hkv, d], and int32 sequence lengths. Our own dumps have a manifest.json (oscar.dump.v1)
// that tells where payloads lie, so that libtorch is not needed to read them; in the published layout every file is
// looked at. Non-goal: reading payloads.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "base/status.hpp"
#include "dump/chunk_file.hpp"
#include "model/config/identity.hpp"

namespace oscar {

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
  /// that the files are those of the manifest, and no others (chunk_file.hpp). A tiny chunk 0 of the
  /// published layout (a warm-up) is left out with a notice. Throws DataError.
  [[nodiscard]] std::vector<DumpChunk> chunks(int layer_id, Status& status) const;

 private:
  std::filesystem::path folder_;
  Json manifest_;
  std::vector<int> layer_ids_;
  std::function<std::filesystem::path(int)> layer_folder_;
};

}  // namespace oscar
