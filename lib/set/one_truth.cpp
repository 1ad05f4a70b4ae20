// SPDX-License-Identifier: MIT
#include "set/one_truth.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <sstream>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "set/rotation_pt.hpp"
#include "set/serve_env.hpp"
#include "set/set_file.hpp"

namespace oscar {
namespace {

using Clauses = std::vector<std::string>;

/// Endings that servers, shells and interpreters act upon.
constexpr std::array<std::string_view, 7> kActive{".pt", ".h5", ".safetensors", ".json", ".env", ".sh", ".py"};

/// The files that a set can have, by name, each with the check that compares it with what follows from the set.
using Expected = std::map<std::string, std::function<void(const fs::path& file, Clauses& out)>>;

/// Without comments, which a shell does not act upon and another version may word in another way.
std::string without_comments(const std::string& text) {
  std::istringstream lines(text);
  std::string kept;
  for (std::string line; std::getline(lines, line);) kept += line.starts_with('#') ? "" : line + "\n";
  return kept;
}

void compare_env(const fs::path& file, const RotationPart& set, Clauses& out) {
  const std::string text = read_text(file), due = serve_env(set, served_files(set));
  if (!text.empty() && without_comments(text) == without_comments(due)) return;
  out.push_back("serve.env is not what follows from the set");
}

void compare_pt(const fs::path& file, const RotationPart& set, SideOfLayer side, Clauses& out) {
  const PtValue found = read_pt(file);
  const PtValue* version = found.find("format_version");
  const auto* number = version == nullptr ? nullptr : version->get_if<std::int64_t>();
  const bool usual = number != nullptr && *number >= 1 && *number <= 3;
  if (usual && found == side_pt(set, side, static_cast<int>(*number), file.string())) return;
  out.push_back(file.filename().string() + " is not what the manifest and the other files say");
}

/// Files of others are kept byte by byte; a manifest was made of what they tell.
void compare_foreign(const fs::path& folder, const RotationPart& set, Clauses& out) {
  const RotationPart told = read_foreign_files(folder / key_pt_name(set), folder / value_pt_name(set));
  Json made = make_manifest(told, Json::array()), found = set.manifest;
  for (const char* name : {"oscar_version", "files", "verification", "origin"}) made.erase(name), found.erase(name);
  if (made != found) out.emplace_back("the manifest is not what the .pt files tell");
}

Expected expected_of(const RotationPart& set, bool foreign) {
  Expected expected;
  expected["serve.env"] = [&](const fs::path& file, Clauses& out) { compare_env(file, set, out); };
  expected["rotations.h5"] = [&](const fs::path& file, Clauses& out) {
    std::ranges::copy(h5_disagreements(file, set), std::back_inserter(out));
  };
  expected["rotations.safetensors"] = [&](const fs::path& file, Clauses& out) {
    for (const std::string& clause : safetensors_disagreements(file, set)) {
      out.push_back("rotations.safetensors: " + clause);
    }
  };
  for (const auto& [name, table] : clip_tables(set)) {
    expected[name] = [name = name, table = table](const fs::path& file, Clauses& out) {
      if (read_json(file) != table) out.push_back(name + " has other clip ratios than the manifest");
    };
  }
  if (has_key_means(set)) {
    expected[kKeyMeansName] = [&](const fs::path& file, Clauses& out) {
      if (!(read_pt(file) == key_means_pt(set))) out.emplace_back("k_mean.pt has other means than the rotation files");
    };
  }
  for (const LayerRotation& layer : set.layers) {
    if (!is_latent(set)) break;
    expected[latent_pt_name(layer.layer_id)] = [&](const fs::path& file, Clauses& out) {
      if (!(read_pt(file) == latent_pt(layer))) out.push_back(file.filename().string() + " is not what the set says");
    };
  }
  const auto kept = [](const fs::path&, Clauses&) {};  // compare_foreign() looks at both
  for (const auto& [name, side] :
       {std::pair{key_pt_name(set), &LayerRotation::key}, {value_pt_name(set), &LayerRotation::value}}) {
    if (foreign) {
      expected[name] = kept;
    } else {
      expected[name] = [&set, side = side](const fs::path& file, Clauses& out) { compare_pt(file, set, side, out); };
    }
  }
  return expected;
}

/// Everything in the folder is listed, and nothing is active that no set has.
void compare_list(const fs::path& folder, const RotationPart& set, const Expected& expected, Clauses& out) {
  std::set<std::string> listed;
  for (const Json& file : set.manifest["files"]) {
    const std::string name = file["path"];
    if (!listed.insert(name).second) out.push_back("the manifest lists " + name + " twice");
    const bool active = std::ranges::any_of(kActive, [&](std::string_view end) { return name.ends_with(end); });
    if (active && !expected.contains(name)) out.push_back(name + " is none of the files that a set has");
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).generic_string();
    if (entry.is_symlink()) out.push_back(name + " is a link: copy the set with what its links lead to (cp -rL)");
    if (name == "manifest.json" || name == "signature.json" || listed.contains(name)) continue;
    if (entry.is_directory() && !entry.is_symlink()) continue;
    out.push_back(name + " is there, and the manifest does not list it");
  }
}

/// Rounding of logarithms, and of sums in another order, stays far below this.
constexpr double kSummaryTolerance = 1e-5;

bool same_summary(const Json& told, const Json& made) {
  if (told.is_null() || made.is_null()) return told.is_null() == made.is_null();
  const double scale = std::max(std::abs(made["max"].get<double>()), std::abs(made["min"].get<double>()));
  const auto near = [&](const char* name, double size) {
    return std::abs(told.at(name).get<double>() - made.at(name).get<double>()) <= kSummaryTolerance * size;
  };
  return near("min", scale) && near("max", scale) && near("mean", scale) &&
         near("effective_rank", made["effective_rank"].get<double>());
}

void compare_side(const SideTransform& side, const ModelIdentity& model, int dim, const Json& told,
                  const std::string& where, Clauses& out) {
  const auto heads = static_cast<std::size_t>(model.num_key_value_heads);
  const auto fits = [&](std::size_t count) { return count <= 1 || heads == 0 || count == heads; };
  if (!fits(static_cast<std::size_t>(side.rotation.count))) out.push_back(where + "matrices are not one for each head");
  if (!side.head_clip_ratios.empty() && heads > 0 && side.head_clip_ratios.size() != heads) {
    out.push_back(where + "clip ratios are not one for each head");
  }
  if (dim > 0 && side.rotation.dim != dim) {
    out.push_back(where + "the manifest says head_dim " + std::to_string(dim) + ", the matrix has " +
                  std::to_string(side.rotation.dim));
  }
  if (!same_summary(told.value("eigenvalues", Json()), summarize_spectrum(side))) {
    out.push_back(where + "the eigenvalue summary is not that of the eigenvalues");
  }
}

/// The recipe repeats what the codec is.
void compare_recipe(const Json& manifest, Clauses& out) {
  const Json &recipe = manifest["recipe"], &codec = manifest["codec"];
  for (const auto& [own, other] : {std::pair{"codec", "name"}, {"levels", "levels"}, {"group_size", "group_size"}}) {
    if (recipe.contains(own) && recipe[own] != codec[other]) {
      out.push_back(std::string("manifest.json: recipe and codec have different values of ") + own);
    }
  }
}

}  // namespace

std::vector<std::string> manifest_disagreements(const RotationPart& set) {
  Clauses out;
  const ModelIdentity& model = set.model;
  const std::set<int> cached(model.cache_layers.begin(), model.cache_layers.end());
  for (std::size_t i = 0; i < set.layers.size(); ++i) {
    const LayerRotation& layer = set.layers[i];
    const Json& told = set.manifest["layers"][i];
    const std::string where = "manifest.json: layer " + std::to_string(layer.layer_id) + ": ";
    if (i > 0 && layer.layer_id <= set.layers[i - 1].layer_id) {
      out.push_back(where + "layers are not in ascending order, each once");
    }
    if (model.num_layers > 0 && layer.layer_id >= model.num_layers) {
      out.push_back(where + "the model has " + std::to_string(model.num_layers) + " layers");
    } else if (!cached.empty() && !cached.contains(layer.layer_id)) {
      out.push_back(where + "the model has no cache there");
    }
    if (told["head_dim"] != layer.key.rotation.dim) out.push_back(where + "head_dim is not that of the matrix");
    const int value_dim = model.value_dim > 0 ? model.value_dim : model.head_dim;
    compare_side(layer.key, model, model.head_dim, told["key"], where + "keys: ", out);
    compare_side(layer.value, model, value_dim, told["value"], where + "values: ", out);
  }
  compare_recipe(set.manifest, out);
  return out;
}

std::vector<std::string> disagreements(const fs::path& folder, const RotationPart& set) {
  Clauses out = manifest_disagreements(set);
  const bool copied = !set.origin.is_null() && !is_latent(set) && !fs::exists(folder / "rotations.h5");
  const Expected expected = expected_of(set, copied);
  compare_list(folder, set, expected, out);
  const auto compare = [&](const auto& check) {
    try {
      check();
    } catch (const Error& error) {
      out.push_back(std::string(error.what()) + (error.where().empty() ? "" : " (" + error.where() + ")"));
    }
  };
  for (const auto& [name, check] : expected) {
    const fs::path file = folder / name;
    if (fs::exists(file)) compare([&, &check = check] { check(file, out); });
  }
  if (copied) compare([&] { compare_foreign(folder, set, out); });
  return out;
}

void require_one_truth(const fs::path& folder, const RotationPart& set) {
  const Clauses found = disagreements(folder, set);
  if (found.empty()) return;
  throw DataError("the files of the set contradict each other: " + found.front() +
                      (found.size() > 1 ? ", and " + std::to_string(found.size() - 1) + " more" : ""),
                  folder.string(), "do not use this set; fetch it again, or ask its maker");
}

void require_sound_set(const fs::path& folder) { (void)read_rotation_set(folder); }

}  // namespace oscar
