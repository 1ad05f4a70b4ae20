// SPDX-License-Identifier: MIT
#include "dump/replaceable.hpp"

#include "base/errors.hpp"
#include "base/json.hpp"
#include "dump/chunk_file.hpp"

namespace oscar {
namespace {

namespace fs = std::filesystem;

std::set<fs::path> files_by_manifest(const fs::path& folder) {
  const fs::path path = folder / "manifest.json";
  const Json manifest = read_json(path);
  validate_json(manifest, "oscar.dump.v1", path.string());
  const std::string suffix = chunk_suffix(manifest.value("format", "pt"));
  std::set<fs::path> files{"manifest.json"};
  for (const Json& layer : manifest["layers"]) {
    const fs::path own = "layer_" + std::to_string(layer["layer_id"].get<int>());
    for (const Json& chunk : layer["chunks"]) {
      for (const char* what : {"q", "k", "v", "seq_lens"}) {
        files.insert(own / what / (std::to_string(chunk["chunk"].get<int>()) + suffix));
      }
    }
  }
  return files;
}

}  // namespace

RequireOurs replaceable_dump(bool replace) {
  if (!replace) return {};
  return [](const fs::path& folder) {
    std::set<fs::path> ours;
    try {
      ours = files_by_manifest(folder);
    } catch (const Error&) {
      throw UsageError("refusing to replace a folder that is not a dump of oscar", folder.string(),
                       "choose another output, or remove the folder yourself");
    }
    require_only(folder, ours, "a dump");
  };
}

}  // namespace oscar
