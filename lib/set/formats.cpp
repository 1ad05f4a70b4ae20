// SPDX-License-Identifier: MIT
#include "set/formats.hpp"

#include <algorithm>
#include <map>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/threads.hpp"
#include "set/manifest.hpp"
#include "set/names.hpp"
#include "set/one_truth.hpp"
#include "set/rotation_pt.hpp"
#include "set/serve_env.hpp"
#include "set/set_file.hpp"

namespace oscar {
namespace {

RotationPart combine(const RotationFile& keys, const RotationFile& values, const std::string& where) {
  RotationPart set;
  set.key_objective = keys.objective;
  set.value_objective = values.objective;
  set.model = keys.model;
  set.calibration = keys.calibration;
  set.has_clip_ratios = keys.has_clip_ratios && values.has_clip_ratios;
  set.key_clip_scalar = keys.clip_scalar, set.value_clip_scalar = values.clip_scalar;
  for (std::size_t i = 0; i < keys.layers.size(); ++i) {
    if (keys.layers.size() != values.layers.size() || keys.layers[i].first != values.layers[i].first) {
      throw DataError("the key file and the value file have different layers", where, "use two files of the same fit");
    }
    set.layers.push_back({keys.layers[i].first, keys.layers[i].second, values.layers[i].second});
  }
  return set;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

/// Of the layers that the set has; those of the .pt files must be the same.
void fill_from_pt(const fs::path& folder, RotationPart& set) {
  const bool latent = is_latent(set) && !fs::exists(folder / key_pt_name(set));
  const RotationPart from = latent ? read_rotation_mla(folder)
                                  : combine(read_rotation_pt(folder / key_pt_name(set)),
                                            read_rotation_pt(folder / value_pt_name(set)), folder.string());
  if (!std::ranges::equal(from.layers, set.layers, {}, &LayerRotation::layer_id, &LayerRotation::layer_id)) {
    throw DataError("the .pt files have other layers than the manifest", folder.string(), "fit the set again");
  }
  for (std::size_t i = 0; i < set.layers.size(); ++i) {
    for (SideTransform LayerRotation::*const side : {&LayerRotation::key, &LayerRotation::value}) {
      static_cast<Transform&>(set.layers[i].*side) = from.layers[i].*side;
      (set.layers[i].*side).eigenvalues = (from.layers[i].*side).eigenvalues;
    }
  }
}

/// Where OSCAR's SGLang does not find the files that it was given, it writes its own under their names.
void require_no_calibration(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(".oscar_") || !name.ends_with(".json")) continue;
    throw DataError("a server calibrated itself and wrote its own rotations into this folder", entry.path().string(),
                    "remove the folder, pull or fit the set again, and start the server with \"oscar serve-env\"");
  }
}

/// The manifest, last, over everything that is there; then the folder gets its name.
void finish_set(AtomicFolder& out, const RotationPart& set, const fs::path& folder) {
  const Json manifest = make_manifest(set, list_with_hashes(out.path(), list_files(out.path())));
  validate_json(manifest, "oscar.rotation_set.v1", folder.string());
  write_json(out.path() / "manifest.json", manifest);
  out.commit();
}

}  // namespace

RotationPart read_foreign_files(const fs::path& key_file, const fs::path& value_file) {
  const RotationFile keys = read_rotation_pt(key_file), values = read_rotation_pt(value_file);
  RotationPart set = combine(keys, values, key_file.parent_path().string());
  set.origin = describe_origin(set, "pt v" + std::to_string(keys.version), {key_file, value_file});
  return set;
}

RotationPart read_foreign_folder(const fs::path& folder, const std::string& pair) {
  const RotationPair chosen = choose_pair(names_in(folder), pair, folder.string());
  return read_foreign_files(folder / chosen.key_file, folder / chosen.value_file);
}

RotationFormats parse_rotation_formats(const std::string& text) {
  const std::map<std::string, bool RotationFormats::*> known{
      {"pt", &RotationFormats::pt}, {"h5", &RotationFormats::h5}, {"safetensors", &RotationFormats::safetensors}};
  RotationFormats formats{.pt = false, .h5 = false, .safetensors = false};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    const auto format = known.find(name);
    if (format == known.end()) {
      throw UsageError("unknown format \"" + name + "\"", "--format", "use a list of pt, h5, safetensors");
    }
    formats.*format->second = true;
    begin = end + 1;
  }
  if (formats.pt || formats.h5) return formats;
  throw UsageError("a set needs pt or h5", "--format", "add pt or h5 to the list");
}

void write_rotation_pt_files(const fs::path& folder, const RotationPart& set, int version) {
  for (const auto& [name, side] :
       {std::pair{key_pt_name(set), &LayerRotation::key}, {value_pt_name(set), &LayerRotation::value}}) {
    write_pt(folder / name, side_pt(set, side, version, (folder / name).string()));
  }
}

void write_rotation_set(const fs::path& folder, const RotationPart& set, const RotationFormats& formats, bool replace) {
  AtomicFolder out(folder, replaceable_set(replace));
  std::vector<std::function<void()>> writers;
  if (formats.pt) {
    writers.emplace_back([&] {
      is_latent(set) ? write_rotation_mla(out.path(), set) : write_rotation_pt_files(out.path(), set, 0);
      if (!is_latent(set) && has_key_means(set)) write_pt(out.path() / kKeyMeansName, key_means_pt(set));
      write_file(out.path() / "serve.env", serve_env(set, hash_served_files(out.path(), set)));
    });
  }
  if (formats.h5) {
    writers.emplace_back([&] { write_set_file(out.path() / "rotations.h5", SetFileKind::kH5, set, false); });
  }
  parallel_for(writers.size(), [&](std::size_t i) { writers[i](); });
  if (formats.safetensors) write_set_file(out.path() / "rotations.safetensors", SetFileKind::kSafetensors, set, false);
  for (const auto& [name, table] : clip_tables(set)) write_json(out.path() / name, table);
  finish_set(out, set, folder);
}

void write_foreign_set(const fs::path& folder, const fs::path& key_file, const fs::path& value_file,
                       const std::string& source, bool replace) {
  RotationPart set = read_foreign_files(key_file, value_file);
  if (!source.empty()) set.origin["source"] = source;
  AtomicFolder out(folder, replaceable_set(replace));
  write_file(out.path() / key_pt_name(set), read_text(key_file));
  write_file(out.path() / value_pt_name(set), read_text(value_file));
  if (has_key_means(set)) write_pt(out.path() / kKeyMeansName, key_means_pt(set));
  write_file(out.path() / "serve.env", serve_env(set, hash_served_files(out.path(), set)));
  finish_set(out, set, folder);
}

RotationPart read_rotation_set(const fs::path& path, ListedFiles listed) {
  if (!fs::is_directory(path)) throw DataError("no such folder", path.string(), "name a rotation set");
  const fs::path manifest_path = path / "manifest.json";
  if (!fs::exists(manifest_path)) {
    RotationPart set = read_foreign_folder(path, "");
    if (listed == ListedFiles::kCheck) require_finite(set, path.string());
    return set;
  }
  const Json manifest = read_json(manifest_path);
  RotationPart set = set_from_manifest(manifest, manifest_path.string());
  require_no_calibration(path);
  if (listed == ListedFiles::kCheck) check_listed_files(path, manifest);
  if (fs::exists(path / "rotations.h5")) {
    fill_from_h5(path / "rotations.h5", set);
  } else if (fs::exists(path / "rotations.safetensors")) {
    fill_from_safetensors(path / "rotations.safetensors", set);
  } else {
    fill_from_pt(path, set);
  }
  if (listed == ListedFiles::kCheck) {
    require_finite(set, path.string());
    require_one_truth(path, set);
  }
  return set;
}

}  // namespace oscar
