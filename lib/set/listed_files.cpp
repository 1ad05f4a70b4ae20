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

std::string defect_of_file(const fs::path& folder, const Json& entry) {
  const std::string name = entry.value("path", "");
  if (!is_safe_relative_path(name)) return "the manifest lists \"" + name + "\", which leads out of the folder";
  const fs::path file = folder / name;
  if (!fs::is_regular_file(file)) return name + " is missing";
  if (file_size(file) != entry.value("size", std::uint64_t{0})) {
    return name + " does not have the size it was written with";
  }
  return sha256_file(file) == entry.value("sha256", "") ? "" : name + " was changed after it was written";
}

void check_listed_files(const fs::path& folder, const Json& manifest) {
  for (const Json& entry : manifest["files"]) {
    const std::string defect = defect_of_file(folder, entry);
    if (!defect.empty())
      throw DataError(defect, folder.string(), "fetch the set again with \"oscar pull\", or fit it again");
  }
}

}  // namespace oscar
