// SPDX-License-Identifier: MIT
#include "set/set_folder.hpp"

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/threads.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "set/serve_env.hpp"

namespace oscar {
namespace {

/// Where OSCAR's SGLang does not find the files that it was given, it writes its own under their names.
void require_no_calibration(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(".oscar_") || !name.ends_with(".json")) continue;
    throw DataError("a server calibrated itself and wrote its own rotations into this folder", entry.path().string(),
                    "remove the folder, pull or fit the set again, and start the server with \"oscar serve-env\"");
  }
}

/// What servers load; serve.env if one reads the part.
void write_served(const fs::path& folder, const Set& set, const std::string& name) {
  const RotationPart& part = set.rotations.at(name);
  part.latent ? write_rotation_mla(folder, part) : write_rotation_pt_files(folder, part, 0);
  if (!part.latent && has_key_means(part)) write_pt(folder / kKeyMeansName, key_means_pt(part));
  if (const Reader* server = server_of_part(set, name)) {
    write_file(folder / "serve.env", serve_env(part, *server, hash_served_files(folder, part)));
  }
}

}  // namespace

void write_set(const fs::path& folder, const Set& set, const RotationFormats& formats, bool replace) {
  AtomicFolder out(folder, replaceable_set(replace));
  std::vector<std::function<void()>> writers;
  if (set.coded) writers.emplace_back([&] { write_coded_file(out.path() / kCodedFile, *set.coded); });
  for (const auto& [name, part] : set.rotations) {
    const fs::path place = out.path() / folder_of_part(name);
    fs::create_directories(place);
    if (formats.pt) writers.emplace_back([&set, place, &name = name] { write_served(place, set, name); });
    if (formats.h5) writers.emplace_back([place, &part = part] { write_part_h5(place / kPartFile, part); });
    for (const auto& [table_name, table] : clip_tables(part)) write_json(place / table_name, table);
  }
  parallel_for(writers.size(), [&](std::size_t i) { writers[i](); });
  const Json manifest = make_manifest(set, list_with_hashes(out.path(), list_files(out.path())));
  validate_json(manifest, kSetSchema, folder.string());
  write_json(out.path() / "manifest.json", manifest);
  out.commit();
}

Set read_set(const fs::path& folder, ListedFiles listed) {
  if (!fs::is_directory(folder)) throw DataError("no such folder", folder.string(), "name a set's folder");
  const fs::path manifest = folder / "manifest.json";
  const bool bare = !fs::exists(manifest);
  Set set = bare ? read_foreign_folder(folder, "") : set_from_manifest(read_json(manifest), manifest.string());
  if (!bare) {
    require_no_calibration(folder);
    if (listed == ListedFiles::kCheck) check_listed_files(folder, set.manifest);
    if (set.coded) fill_from_coded_file(folder / kCodedFile, *set.coded);
    for (auto& [name, part] : set.rotations) {
      const fs::path place = folder / folder_of_part(name);
      fs::exists(place / kPartFile) ? fill_from_h5(place / kPartFile, part) : fill_from_pt(place, part);
    }
  }
  if (listed == ListedFiles::kChecked) return set;
  for (const auto& [name, part] : set.rotations) require_finite(part, folder.string());
  const std::vector<std::string> found = bare ? std::vector<std::string>() : disagreements(folder, set);
  if (found.empty()) return set;
  throw DataError("the files of the set contradict each other: " + found.front() +
                      (found.size() > 1 ? ", and " + std::to_string(found.size() - 1) + " more" : ""),
                  folder.string(), "do not use this set; fetch it again, or ask its maker");
}

}  // namespace oscar
