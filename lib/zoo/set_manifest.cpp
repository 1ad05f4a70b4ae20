// SPDX-License-Identifier: MIT
#include "zoo/set_manifest.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "remote/transport.hpp"
#include "set/set.hpp"
#include "set/verdict.hpp"
#include "zoo/name.hpp"

namespace oscar {
namespace {

constexpr std::string_view kSchemaFamily = "oscar.set.";
constexpr char kPublishAgain[] = "write the set with oscar fit and publish it again";

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

FileDigest file_from_json(const Json& json, const std::string& where) {
  const auto refuse = [&](const std::string& what) -> FileDigest { throw DataError(what, where, kPublishAgain); };
  if (!json.is_object()) return refuse("an entry of the file list is not an object");
  const Json path = json.value("path", Json()), hash = json.value("sha256", Json()), size = json.value("size", Json());
  if (!path.is_string() || !hash.is_string() || !is_sha256(hash.get<std::string>()) || !size.is_number_unsigned()) {
    return refuse("an entry of the file list lacks path, sha256 or size: " + json.dump(-1, ' ', true).substr(0, 200));
  }
  FileDigest file{path.get<std::string>(), hash.get<std::string>(), size.get<std::uint64_t>()};
  if (!is_safe_relative_path(file.path) || has_control_characters(file.path) || file.path == kManifestName) {
    return refuse("the file list has the unsafe path " + path.dump(-1, ' ', true));
  }
  return file;
}

/// "a" and "a", or "a" and "a/b": one of them could not be written.
void refuse_collisions(const std::vector<FileDigest>& files, const std::string& where) {
  std::set<std::string> names, folders{kManifestName};
  for (const FileDigest& file : files) {
    const bool fresh = names.insert(file.path).second;
    for (auto slash = file.path.find('/'); slash != std::string::npos; slash = file.path.find('/', slash + 1)) {
      folders.insert(file.path.substr(0, slash));
    }
    if (!fresh) throw DataError("the file list names " + file.path + " twice", where, kPublishAgain);
  }
  for (const std::string& name : names) {
    if (folders.contains(name))
      throw DataError("the file list has " + name + " as a file and as a folder", where, kPublishAgain);
  }
  if (std::any_of(names.begin(), names.end(),
                  [](const std::string& name) { return name.starts_with("manifest.json/"); })) {
    throw DataError("the file list has manifest.json as a folder", where, kPublishAgain);
  }
}

}  // namespace

SetManifest parse_set_manifest(std::string text, const std::string& where) {
  SetManifest manifest;
  manifest.document = parse_json(text, where);
  const Json& document = manifest.document;
  const Json schema = document.is_object() ? document.value("schema", Json()) : Json();
  if (!schema.is_string() || !schema.get<std::string>().starts_with(kSchemaFamily)) {
    throw DataError("not the manifest of a set", where, "name the folder that oscar fit wrote");
  }
  const Json files = document.value("files", Json());
  if (!files.is_array() || files.empty()) throw DataError("the manifest lists no files", where, kPublishAgain);
  manifest.total_size = text.size();
  for (const Json& json : files) {
    manifest.files.push_back(file_from_json(json, where));
    const std::uint64_t room =
        static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) - manifest.total_size;
    if (manifest.files.back().size > room) throw DataError("the listed sizes are impossible", where, kPublishAgain);
    manifest.total_size += manifest.files.back().size;
  }
  refuse_collisions(manifest.files, where);
  manifest.sha256 = sha256_hex(text);
  manifest.text = std::move(text);
  return manifest;
}

Json readers_of(const Json& document) {
  Json found = Json::object();
  const Json told = document.is_object() ? document.value("readers", Json()) : Json();
  for (const Reader& reader : readers()) {
    const Json part = told.is_object() ? told.value(reader.name, Json()) : Json();
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
  std::string text;
  for (const auto& [name, each] : readers.items()) {
    text += (text.empty() ? "" : ", ") + name + " " + each.at("verdict").get<std::string>();
  }
  return text;
}

SetManifest read_set_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  std::error_code error;
  if (fs::is_regular_file(path, error) && file_size(path) > kMaxDocumentBytes) {
    throw DataError("too large for a manifest", path.string(), kPublishAgain);
  }
  return parse_set_manifest(read_text(path), path.string());
}

std::optional<SetManifest> find_set(const fs::path& folder, const std::string& manifest_sha256, SetCheck check) {
  try {
    SetManifest manifest = read_set_manifest(folder);
    if (manifest.sha256 != manifest_sha256) return std::nullopt;
    for (const FileDigest& file : manifest.files) {
      if (file_size(folder / file.path) != file.size) return std::nullopt;
      if (check == SetCheck::hashes && sha256_file(folder / file.path) != file.sha256) return std::nullopt;
    }
    return manifest;
  } catch (const Error&) {
    return std::nullopt;  // absent or damaged: the caller fetches it again
  }
}

}  // namespace oscar
