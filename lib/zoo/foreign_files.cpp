// SPDX-License-Identifier: MIT
#include "zoo/foreign_files.hpp"

#include <algorithm>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "rotation/convert.hpp"
#include "rotation/names.hpp"
#include "zoo/name.hpp"

namespace oscar {
namespace {

constexpr char kCheckHub[] = "check HF_ENDPOINT";

Json member(const Json& json, const char* name) { return json.is_object() ? json.value(name, Json()) : Json(); }

/// One file of a repository; path: its name in the folder.
FileDigest file_of(const Json& entry, const std::string& path, const std::string& where) {
  const Json size = member(entry, "size"), lfs = member(entry, "lfs");
  const Json hash = lfs.is_object() ? member(lfs, "sha256") : member(entry, "blobId");
  const std::string digest = hash.is_string() ? hash.get<std::string>() : "";
  const bool known = lfs.is_object() ? is_sha256(digest) : is_git_hash(digest);
  if (!known || !size.is_number_unsigned() || !is_safe_relative_path(path)) {
    throw DataError("the hub lists the file " + path + " without size or hash, or with an unusable name", where,
                    kCheckHub);
  }
  FileDigest file{path, "", size.get<std::uint64_t>(), ""};
  (lfs.is_object() ? file.sha256 : file.git_oid) = digest;
  return file;
}

bool holds_rotations(const std::string& name) {
  const bool sides = name.starts_with("k_rotation") || name.starts_with("v_rotation") || name.starts_with("layer_");
  if (name.ends_with(".pt")) return sides;
  return name.ends_with(".h5") || name.ends_with(".safetensors");
}

}  // namespace

std::vector<FileDigest> rotation_files(const HubRepository& repository, const std::string& pair) {
  const HubAddress& address = repository.pinned;
  if (!repository.files) throw DataError("the hub does not tell what the repository holds", address.text(), kCheckHub);
  const std::string prefix = address.folder.empty() ? "" : address.folder + "/";
  std::vector<FileDigest> files;
  for (const Json& entry : *repository.files) {
    const Json name = member(entry, "rfilename");
    if (!name.is_string() || !name.get<std::string>().starts_with(prefix)) continue;
    const std::string path = name.get<std::string>().substr(prefix.size());
    if (path.find('/') == std::string::npos && holds_rotations(path)) {
      files.push_back(file_of(entry, path, address.text()));
    }
  }
  if (files.empty()) {
    throw DataError("there are no rotation files in this folder", address.text(),
                    "name the folder that holds k_rotation*.pt and v_rotation*.pt");
  }
  std::vector<std::string> names;
  for (const FileDigest& file : files) names.push_back(file.path);
  if (pair.empty() && rotation_pairs(names).size() < 2) return files;
  const RotationPair chosen = choose_pair(names, pair, address.text());
  std::erase_if(files,
                [&](const auto& file) { return file.path != chosen.key_file && file.path != chosen.value_file; });
  return files;
}

void make_set_of_files(const fs::path& files_folder, const fs::path& set, const std::string& source) {
  const std::vector<fs::path> files = list_files(files_folder);
  const auto only = [&](const std::string& prefix) {
    const auto fits = [&](const fs::path& file) {
      return file.string().starts_with(prefix) && file.extension() == ".pt";
    };
    return std::ranges::count_if(files, fits) == 1 ? files_folder / *std::ranges::find_if(files, fits) : fs::path();
  };
  const fs::path keys = only("k_rotation"), values = only("v_rotation");
  if (!keys.empty() && !values.empty()) return write_foreign_set(set, keys, values, source, true);
  RotationSet foreign = read_any_set(files.size() == 1 ? files_folder / files.front() : files_folder);
  if (!foreign.origin.is_null()) foreign.origin["source"] = source;
  write_rotation_set(set, foreign, {}, true);
}

}  // namespace oscar
