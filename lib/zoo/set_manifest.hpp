// SPDX-License-Identifier: MIT
// What a zoo needs to know of a set: its manifest's bytes, and the files that these list. The manifest's
// sha256 names the content: every file follows from it. Tensors are never opened here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.hpp"

namespace oscar {

inline constexpr char kManifestName[] = "manifest.json";

struct FileDigest {
  std::string path;  // relative to the set's folder, safe
  std::string sha256;
  std::uint64_t size = 0;
  std::string git_oid;  // instead of sha256: SHA-1 of git's blob, which is all that the Hub tells of small files
};

struct SetManifest {
  std::string text;    // the exact bytes
  std::string sha256;  // of text
  Json document;
  std::vector<FileDigest> files;
  std::uint64_t total_size = 0;  // manifest and files
};

/// Parses the manifest of a set. Throws DataError: not a manifest of oscar.set.v1, or a file list with unsafe or
/// colliding paths.
[[nodiscard]] SetManifest parse_set_manifest(std::string text, const std::string& where);
/// Reads the manifest in a set's folder.
[[nodiscard]] SetManifest read_set_manifest(const std::filesystem::path& folder);

/// Returns what a manifest, or its summary in an index, says of each reader that is known: {"vllm": {"part": "coded",
/// "verdict": "accepted"}}, in the words of name_of().
[[nodiscard]] Json readers_of(const Json& document);
/// Whether one of these verdicts is "accepted".
[[nodiscard]] bool any_accepted(const Json& readers);
/// "vllm accepted, sglang not verified".
[[nodiscard]] std::string verdicts_text(const Json& readers);

/// The manifest of the set in `folder`, if it has this hash and its files are those that it lists.
[[nodiscard]] std::optional<SetManifest> find_set(const std::filesystem::path& folder,
                                                  const std::string& manifest_sha256);

}  // namespace oscar
