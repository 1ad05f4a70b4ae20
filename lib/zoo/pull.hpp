// SPDX-License-Identifier: MIT
// Fetches a set: index.json, then the set's manifest.json, then its files, each checked by size and sha256.
// A name that was pulled from a web server before is answered from the cache without network until `refresh` asks
// again; a zoo in a folder is asked every time. ORG/MODEL@sha256:HEX is answered from the cache whenever it is there.
// hf://ORG/REPO/FOLDER[@REVISION] is a folder on the Hugging Face Hub: a set of ours as it is, rotation files of others
// as a set whose manifest says what is known. A pull that was cut off goes on where it was.
// Each pull hashes a cached set's manifest and all its files; a damaged set is fetched anew.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "remote/transport.hpp"
#include "set/set_folder.hpp"
#include "zoo/index.hpp"

namespace oscar {

/// Who must have signed a set's manifest. Given keys decide; without them, the keys that signed a model's sets when
/// they were first pulled from a zoo are remembered, and others refused from then on.
struct TrustOptions {
  /// Refuse sets that are not signed, or not by who signed before.
  bool require_signature = false;
  /// PEM files with public Ed25519 keys: one of them must have signed. Implies require_signature.
  std::vector<std::filesystem::path> keys;

  [[nodiscard]] bool needed() const { return require_signature || !keys.empty(); }
};

struct PullOptions {
  std::string name;                // ORG/MODEL, ORG/MODEL:TAG, ORG/MODEL@sha256:HEX, or hf://ORG/REPO/FOLDER
  std::optional<std::string> zoo;  // a folder, file://, http(s):// or hf://ORG/REPO; default: default_zoo()
  std::string pair;                // of a folder on the Hub with several pairs of .pt files: which; empty: the only one
  std::optional<std::filesystem::path>
      out;                      // default: into the cache; else that keeps only what a pull that was cut off had
  std::filesystem::path cache;  // empty: default_cache_folder()
  bool offline = false;         // only what the cache has, and zoos in folders
  bool refresh = false;         // ask the zoo again although the cache knows the name
  bool force = false;           // replace another set in `out`
  std::uint64_t max_bytes = std::uint64_t{4} << 30;  // refuse larger sets
  TrustOptions trust;
  TransferOptions transfer;
};

struct PullResult {
  std::filesystem::path path;  // absolute
  std::string name;            // as asked, with the tag
  std::string zoo;
  std::string manifest_sha256;
  std::uint64_t total_size = 0;
  bool fetched = false;  // false: the files were here already
  Json readers;          // which part each reads, and its verdict: readers_of()
};

/// examine: looks at the folder of a set that was fetched, before it is given to anybody; throws DataError for one that
/// contradicts itself.
[[nodiscard]] PullResult pull(const PullOptions& options, Status& status, const TransportFactory& open,
                              const ExamineSet& examine);

}  // namespace oscar
