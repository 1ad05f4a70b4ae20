// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "set/serve_env.hpp"
#include "set/set_folder.hpp"

namespace oscar {
namespace {

using Clauses = std::vector<std::string>;

/// What stands beside a set for people. Servers, shells and interpreters act upon other endings.
constexpr std::array<std::string_view, 3> kForPeople{"LICENSE", ".md", ".txt"};

/// The files that a set can have, by path, each with what tells whether it follows from the set.
using Expected = std::map<std::string, std::function<bool(const fs::path& file)>>;

/// Without comments, which a shell does not act upon and another version may word in another way.
std::string without_comments(const std::string& text) {
  std::istringstream lines(text);
  std::string kept;
  for (std::string line; std::getline(lines, line);) kept += line.starts_with('#') ? "" : line + "\n";
  return kept;
}

bool is_env(const fs::path& file, const std::string& due) {
  const std::string text = read_text(file);
  return !text.empty() && without_comments(text) == without_comments(due);
}

bool is_side(const fs::path& file, const RotationPart& part, SideOfLayer side) {
  const PtValue found = read_pt(file);
  const auto* number = member_of<std::int64_t>(&found, "format_version");
  const bool usual = number != nullptr && *number >= 1 && *number <= 3;
  return usual && found == side_pt(part, side, static_cast<int>(*number), file.string());
}

void expect_part(const Set& set, const std::string& name, Expected& expected) {
  const RotationPart& part = set.rotations.at(name);
  const std::string folder = folder_of_part(name);
  expected[folder + kPartFile] = [&](const fs::path& file) {
    const Clauses found = h5_disagreements(file, part);
    if (!found.empty()) throw DataError(found.front(), kPartFile, "");
    return true;
  };
  if (const Reader* server = server_of_part(set, name)) {
    expected[folder + "serve.env"] = [&, server, name](const fs::path& file) {
      return is_env(file, serve_env(part, *server, served_files(set, name)));
    };
  }
  for (const auto& [table_name, table] : clip_tables(part)) {
    expected[folder + table_name] = [table = table](const fs::path& file) { return read_json(file) == table; };
  }
  for (const LayerRotation& layer : part.layers) {
    if (!part.latent) break;
    expected[folder + latent_pt_name(layer.layer_id)] = [&](const fs::path& file) {
      return read_pt(file) == latent_pt(layer);
    };
  }
  if (part.latent) return;
  if (has_key_means(part)) {
    expected[folder + kKeyMeansName] = [&](const fs::path& file) { return read_pt(file) == key_means_pt(part); };
  }
  for (const auto& [file_name, side] :
       {std::pair{key_pt_name(part), &LayerRotation::key}, {value_pt_name(part), &LayerRotation::value}}) {
    expected[folder + file_name] = [&, side = side](const fs::path& file) { return is_side(file, part, side); };
  }
}

/// Everything in the folder is listed, and nothing is active that no set has.
void compare_list(const fs::path& folder, const Set& set, const Expected& expected, Clauses& out) {
  std::set<std::string> listed;
  for (const Json& file : set.manifest["files"]) {
    const std::string name = file["path"];
    if (!listed.insert(name).second) out.push_back("the manifest lists " + name + " twice");
    const bool read = std::ranges::any_of(kForPeople, [&](std::string_view end) { return name.ends_with(end); });
    if (!read && !expected.contains(name)) out.push_back(name + " is none of the files that a set has");
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
constexpr double kRounding = 1e-5;

/// What `told` says in another way than `made`, or does not say at all; it may say more.
void compare_json(const Json& told, const Json& made, const std::string& where, Clauses& out) {
  if (made.is_object() && told.is_object()) {
    for (const auto& [name, value] : made.items()) {
      compare_json(told.value(name, Json()), value, where + "/" + name, out);
    }
    return;
  }
  if (made.is_array() && told.is_array() && made.size() == told.size()) {
    for (std::size_t i = 0; i < made.size(); ++i) compare_json(told[i], made[i], where + "/" + std::to_string(i), out);
    return;
  }
  const bool numbers = made.is_number() && told.is_number();
  const double a = numbers ? made.get<double>() : 0, b = numbers ? told.get<double>() : 0;
  if (numbers ? std::abs(a - b) <= kRounding * std::max(std::abs(a), std::abs(b)) : made == told) return;
  out.push_back("manifest.json: " + where + " is " + told.dump(-1, ' ', true).substr(0, 60) + ", and the files say " +
                made.dump(-1, ' ', true).substr(0, 60));
}

/// Keys or values of a layer.
struct Shape {
  const char* side;
  int dim = 0;
  std::size_t heads = 0, clips = 0;  // matrices, and clip ratios of heads; 1 and 0: one for all
};

/// A layer after the one with the id `before` (-1: none) against what is known of the model.
void compare_layer(const ModelIdentity& model, int id, int before, const std::array<Shape, 2>& shapes,
                   const std::string& where, Clauses& out) {
  const bool cached = model.cache_layers.empty() || std::ranges::count(model.cache_layers, id) > 0;
  if (id <= before) out.push_back(where + "layers are not in ascending order, each once");
  if (model.num_layers > 0 && id >= model.num_layers) {
    out.push_back(where + "the model has " + std::to_string(model.num_layers) + " layers");
  } else if (!cached) {
    out.push_back(where + "the model has no cache there");
  }
  const auto heads = static_cast<std::size_t>(model.num_key_value_heads);
  for (const Shape& shape : shapes) {
    const bool values = &shape != shapes.data();
    const int dim = values && model.value_dim > 0 ? model.value_dim : model.head_dim;
    if (heads > 0 && shape.heads > 1 && shape.heads != heads)
      out.push_back(where + shape.side + ": matrices are not one for each head");
    if (heads > 0 && shape.clips > 0 && shape.clips != heads)
      out.push_back(where + shape.side + ": clip ratios are not one for each head");
    if (dim > 0 && shape.dim != dim) {
      out.push_back(where + shape.side + ": the manifest says head_dim " + std::to_string(dim) + ", the matrix has " +
                    std::to_string(shape.dim));
    }
  }
}

template <class Part, class Shapes>
void compare_layers(const Part& part, const std::string& name, const Shapes& shapes_of, Clauses& out) {
  int before = -1;
  for (const auto& layer : part.layers) {
    const std::string where = "manifest.json: " + name + ", layer " + std::to_string(layer.layer_id) + ": ";
    compare_layer(part.model, layer.layer_id, std::exchange(before, layer.layer_id), shapes_of(layer), where, out);
  }
}

}  // namespace

Clauses manifest_disagreements(const Set& set) {
  Clauses out;
  const Json made = make_manifest(set, Json::array());
  if (made["readers"] != set.manifest["readers"]) out.emplace_back("manifest.json: readers are not those of the parts");
  compare_json(set.manifest["parts"], made["parts"], "parts", out);
  for (const auto& [name, verdict] : member(set.verification, "readers").items()) {
    if (made["readers"].value(name, Json()) != verdict["part"])
      out.push_back("manifest.json: the verdict for " + name + " is that of another part than it reads");
  }
  if (set.coded) {
    const auto shapes = [](const CodedLayer& layer) {
      const auto of = [](const char* name, const CodedSide& side) {
        return Shape{name, side.transform.rotation.dim, side.formats.size()};
      };
      return std::array{of("keys", layer.key), of("values", layer.value)};
    };
    compare_layers(*set.coded, kCodedName, shapes, out);
  }
  for (const auto& [name, part] : set.rotations) {
    const auto shapes = [](const LayerRotation& layer) {
      const auto of = [](const char* side_name, const SideTransform& side) {
        const auto matrices = static_cast<std::size_t>(side.rotation.count);
        return Shape{side_name, side.rotation.dim, matrices, side.head_clip_ratios.size()};
      };
      return std::array{of("keys", layer.key), of("values", layer.value)};
    };
    compare_layers(part, name, shapes, out);
    if (std::ranges::any_of(part.layers, [](const auto& layer) { return !layer.value.mean.empty(); })) {
      out.push_back(name + ": values have a mean, which no reader adds to them");
    }
    // The recipe repeats what the codec is.
    for (const auto& [own, other] : {std::pair{"codec", "name"}, {"levels", "levels"}, {"group_size", "group_size"}}) {
      const Json& codec = set.manifest["parts"][name]["codec"];
      if (!part.recipe.contains(own) || part.recipe[own] == codec[other]) continue;
      out.push_back("manifest.json: " + name + ": recipe and codec have different values of " + own);
    }
  }
  return out;
}

Clauses disagreements(const fs::path& folder, const Set& set) {
  Clauses out = manifest_disagreements(set);
  if (!out.empty()) return out;  // what such a manifest asks for may be without bounds
  Expected expected;
  if (set.coded) expected[kCodedFile] = [](const fs::path&) { return true; };  // nothing in it is told by another file
  for (const auto& [name, part] : set.rotations) expect_part(set, name, expected);
  compare_list(folder, set, expected, out);
  for (const auto& [name, follows] : expected) {
    if (!fs::exists(folder / name)) continue;
    try {
      if (!follows(folder / name)) out.push_back(name + " is not what the manifest and the other files say");
    } catch (const Error& error) {
      out.push_back(name + ": " + error.what() + (error.where().empty() ? "" : " (" + error.where() + ")"));
    }
  }
  return out;
}

}  // namespace oscar
