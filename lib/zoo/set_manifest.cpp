// SPDX-License-Identifier: MIT
#include "zoo/set_manifest.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/text.hpp"
#include "remote/transport.hpp"
#include "set/manifest.hpp"
#include "set/set.hpp"
#include "set/verdict.hpp"
#include "zoo/signatures.hpp"

namespace oscar {
namespace {

constexpr char kPublishAgain[] = "write the set with oscar fit and publish it again";

/// Paths that lead out of the folder or onto the manifest; "a" and "a", or "a" and "a/b": one of them could not be
/// written.
void refuse_paths(const std::vector<FileDigest>& files, const std::string& where) {
  std::set<std::string> names{kManifestName};
  for (const FileDigest& file : files) {
    const bool control = std::ranges::any_of(file.path, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    const std::string name = Json(file.path).dump(-1, ' ', true);
    if (!is_safe_relative_path(file.path) || control || file.path == kManifestName) {
      throw DataError("the file list has the unsafe path " + name, where, kPublishAgain);
    }
    if (!names.insert(file.path).second)
      throw DataError("the file list names " + name + " twice", where, kPublishAgain);
  }
  for (const FileDigest& file : files) {
    for (fs::path above = fs::path(file.path).parent_path(); !above.empty(); above = above.parent_path()) {
      if (!names.contains(above.string())) continue;
      throw DataError("the file list has " + above.string() + " as a file and as a folder", where, kPublishAgain);
    }
  }
}

}  // namespace

SetManifest parse_set_manifest(std::string text, const std::string& where) {
  SetManifest manifest;
  manifest.document = parse_json(text, where);
  validate_json(manifest.document, kSetSchema, where);
  manifest.total_size = text.size();
  for (const Json& file : manifest.document["files"]) {
    if (!file["size"].is_number_unsigned()) throw DataError("a listed size is no whole number", where, kPublishAgain);
    manifest.files.push_back({file["path"], file["sha256"], file["size"], ""});
    const std::uint64_t room =
        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - manifest.total_size;
    if (manifest.files.back().size > room) throw DataError("the listed sizes are impossible", where, kPublishAgain);
    manifest.total_size += manifest.files.back().size;
  }
  if (manifest.files.empty()) throw DataError("the manifest lists no files", where, kPublishAgain);
  refuse_paths(manifest.files, where);
  manifest.sha256 = sha256_hex(text);
  manifest.text = std::move(text);
  return manifest;
}

Json readers_of(const Json& document) {
  Json found = Json::object();
  for (const Reader& reader : readers()) {
    const Json part = member(member(document, "readers"), reader.name);
    if (!part.is_string()) continue;
    found[reader.name] = {{"part", part}, {"verdict", name_of(recorded_verdict(document, reader.name))}};
  }
  return found;
}

bool any_accepted(const Json& readers) {
  return std::ranges::any_of(readers,
                             [](const Json& each) { return each.at("verdict") == name_of(Verdict::kAccepted); });
}

std::string verdicts_text(const Json& readers) {
  return joined(readers.items(), ", ", [](const auto& each) {
    return each.key() + " " + each.value().at("verdict").template get<std::string>();
  });
}

SetManifest read_set_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  std::error_code error;
  if (fs::is_regular_file(path, error) && file_size(path) > kMaxDocumentBytes) {
    throw DataError("too large for a manifest", path.string(), kPublishAgain);
  }
  return parse_set_manifest(read_text(path), path.string());
}

std::optional<SetManifest> find_set(const fs::path& folder, const std::string& manifest_sha256) {
  try {
    SetManifest manifest = read_set_manifest(folder);
    if (manifest.sha256 != manifest_sha256) return std::nullopt;
    check_listed_files(folder, manifest.document);
    std::set<fs::path> known{kManifestName, kSignatureName};
    for (const Json& file : manifest.document["files"]) known.insert(file["path"].get<std::string>());
    const std::vector<fs::path> found = list_files(folder);
    if (!std::ranges::all_of(found, [&](const fs::path& file) { return known.contains(file); })) return std::nullopt;
    return manifest;
  } catch (const Error&) {
    return std::nullopt;  // absent or damaged: the caller fetches it again
  }
}

}  // namespace oscar
