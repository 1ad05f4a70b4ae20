// SPDX-License-Identifier: MIT
#include "base/files.hpp"
#include "base/sha256.hpp"
#include "base/threads.hpp"
#include "coded/coded_set.hpp"
#include "verify/structure/checks.hpp"

namespace oscar::verify {
namespace {

/// What is wrong with one listed file; empty if nothing is.
std::string defect_of(const fs::path& folder, const Json& entry) {
  const std::string name = entry.value("path", "");
  if (!is_safe_relative_path(name)) return "the manifest lists \"" + name + "\", which leads out of the folder";
  const fs::path file = folder / name;
  if (!fs::is_regular_file(file)) return name + " is missing";
  if (file_size(file) != entry.value("size", std::uint64_t{0}))
    return name + " does not have the size it was written with";
  if (sha256_file(file) != entry.value("sha256", "")) return name + " was changed after it was written";
  return "";
}

}  // namespace

void check_file_hashes(const std::filesystem::path& path, std::vector<Check>& checks) {
  const fs::path manifest_path = path / "manifest.json";
  if (!fs::is_directory(path) || !fs::exists(manifest_path)) {
    checks.push_back({"file_hashes", {}, "", {}, {}, {}, "there is no manifest that lists hashes"});
    return;
  }
  const Json manifest = read_json(manifest_path);
  validate_json(manifest, is_coded_set(path) ? kCodedSchema : "oscar.rotation_set.v1", manifest_path.string());
  const Json& files = manifest.at("files");
  std::vector<std::string> found(files.size());
  parallel_for(found.size(), [&](std::size_t i) { found[i] = defect_of(path, files[i]); });
  std::string defects;
  double bad = 0;
  for (const std::string& defect : found) {
    if (defect.empty()) continue;
    bad += 1;
    defects += (defects.empty() ? "" : "; ") + defect;
  }
  if (bad > 0) defects += ": pull or fit the set again";
  checks.push_back({"file_hashes", {}, "", bad, 0.0, bad == 0, defects});
}

void check_one_truth(const Subject& subject, std::vector<Check>& checks) {
  if (!subject.ours) return;
  const std::vector<std::string>& found = subject.disagreements;
  std::string message;
  for (const std::string& clause : found) message += (message.empty() ? "" : "; ") + clause;
  checks.push_back(
      {"derived_files", {}, "", static_cast<double>(found.size()), 0.0, found.empty(), std::move(message)});
}

}  // namespace oscar::verify
