// SPDX-License-Identifier: MIT
// The files of a set as its manifest lists them.
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/threads.hpp"
#include "set/manifest.hpp"

namespace oscar {

Json list_with_hashes(const fs::path& folder, const std::vector<fs::path>& files) {
  Json list(files.size(), nullptr);
  parallel_for(files.size(), [&](std::size_t i) {
    const fs::path file = folder / files[i];
    list[i] = {{"path", files[i].generic_string()}, {"sha256", sha256_file(file)}, {"size", regular_file_size(file)}};
  });
  return list;
}

namespace {

/// Empty: there is none.
std::string defect_of(const fs::path& folder, const Json& entry) {
  const std::string name = entry.value("path", "");
  if (!is_safe_relative_path(name)) return "the manifest lists \"" + name + "\", which leads out of the folder";
  const fs::path file = folder / name;
  if (!fs::is_regular_file(file)) return name + " is missing";
  if (file_size(file) != entry.value("size", std::uint64_t{0})) {
    return name + " does not have the size it was written with";
  }
  return sha256_file(file) == entry.value("sha256", "") ? "" : name + " was changed after it was written";
}

}  // namespace

std::vector<std::string> defects_of_files(const fs::path& folder, const Json& manifest) {
  const Json& files = manifest["files"];
  std::vector<std::string> defects(files.size());
  parallel_for(defects.size(), [&](std::size_t i) { defects[i] = defect_of(folder, files[i]); });
  std::erase(defects, "");
  return defects;
}

void check_listed_files(const fs::path& folder, const Json& manifest) {
  const std::vector<std::string> defects = defects_of_files(folder, manifest);
  if (defects.empty()) return;
  throw DataError(defects.front(), folder.string(), "fetch the set again with \"oscar pull\", or fit it again");
}

}  // namespace oscar
