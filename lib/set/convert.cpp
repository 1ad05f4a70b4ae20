// SPDX-License-Identifier: MIT
#include "set/convert.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/status.hpp"
#include "base/text.hpp"
#include "set/formats.hpp"
#include "set/manifest.hpp"
#include "set/serve_env.hpp"
#include "set/set_folder.hpp"

namespace oscar {
namespace {

struct FormatName {
  SetFormat format;
  std::string_view name, extension;  // extension: "" for folders
};
constexpr std::array<FormatName, 6> kFormats{{{SetFormat::kSet, "set", ""},
                                              {SetFormat::kPt, "pt", ""},
                                              {SetFormat::kH5, "h5", ".h5"},
                                              {SetFormat::kSafetensors, "safetensors", ".safetensors"},
                                              {SetFormat::kGguf, "gguf", ".gguf"},
                                              {SetFormat::kMla, "mla", ""}}};

constexpr char kKnown[] = "name a set, a folder of .pt files, or a .h5, .safetensors or .gguf file";

std::string first_bytes(const fs::path& path) {
  std::string head(std::min<std::uint64_t>(regular_file_size(path), 9), '\0');
  read_at(path, 0, std::as_writable_bytes(std::span(head)));
  return head;
}

SetFormat recognise_file(const fs::path& path) {
  const std::string head = first_bytes(path);
  if (head.starts_with("GGUF")) return SetFormat::kGguf;
  if (head.starts_with("\x89HDF\r\n\x1a\n")) return SetFormat::kH5;
  if (head.starts_with("PK\x03\x04")) {
    throw DataError("one side of a set, or no rotations", path.string(),
                    "name the folder that holds both k_rotation*.pt and v_rotation*.pt");
  }
  if (head.size() == 9 && head[8] == '{') return SetFormat::kSafetensors;
  throw DataError("the file holds no rotations that oscar knows", path.string(), kKnown);
}

SetFormat recognise_folder(const fs::path& folder) {
  if (fs::exists(folder / "manifest.json")) return SetFormat::kSet;
  bool sides = false, layers = false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".pt") || !entry.is_regular_file()) continue;
    sides = sides || name.starts_with("k_rotation") || name.starts_with("v_rotation");
    layers = layers || name.starts_with("layer_");
  }
  if (sides) return SetFormat::kPt;
  if (layers) return SetFormat::kMla;
  throw DataError("the folder holds no rotations that oscar knows", folder.string(), kKnown);
}

SetFormat recognise_set(const fs::path& path) {
  return fs::is_directory(path) ? recognise_folder(path) : recognise_file(path);
}

Set read_as(SetFormat format, const fs::path& path) {
  switch (format) {
    case SetFormat::kH5:
      return read_set_file(path, SetFileKind::kH5);
    case SetFormat::kSafetensors:
      return read_set_file(path, SetFileKind::kSafetensors);
    case SetFormat::kGguf:
      return read_rotation_gguf(path);
    case SetFormat::kMla:
      return set_of(read_rotation_mla(path));
    default:
      return read_set(path);
  }
}

SetFormat format_for(const fs::path& out, const ConvertOptions& options) {
  const std::string extension = out.extension().string();
  if (options.to) {
    for (const FormatName& known : kFormats) {
      if (known.format == *options.to && known.extension.empty() && fs::is_regular_file(out)) {
        throw UsageError("the output is a file, and " + std::string(known.name) + " is a folder", out.string(),
                         "choose another OUT");
      }
    }
    return *options.to;
  }
  for (const FormatName& known : kFormats) {
    if (!known.extension.empty() && known.extension == extension) return known.format;
  }
  if (extension == ".pt") {
    throw UsageError("a set in .pt files is a folder of them", out.string(),
                     "give --to pt for such a folder, or --to set for a set of that name");
  }
  return SetFormat::kSet;
}

/// For an AtomicFolder: all in it are rotations, under the names that their content gives them when they are written.
void require_bare_files(const fs::path& folder) {
  std::set<fs::path> ours;
  try {
    for (const LayerRotation& layer : read_rotation_mla(folder).layers) ours.insert(latent_pt_name(layer.layer_id));
  } catch (const Error&) {  // whatever they are, we did not write them
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("k_rotation_") && !name.starts_with("v_rotation_")) continue;
    try {
      if (name.substr(1) == "_rotation_" + read_rotation_pt(entry.path()).objective + ".pt") ours.insert(name);
    } catch (const Error&) {  // likewise
    }
  }
  require_only(folder, ours, "a folder of .pt files");
}

/// A file of rotations with a manifest of ours in it may be replaced; somebody's model, or letters, may not.
void require_set_file(const fs::path& file) {
  bool ours = false;
  try {
    ours = !read_as(recognise_file(file), file).manifest.is_null();
  } catch (const Error&) {  // whatever it is, we did not write it
  }
  if (ours) return;
  throw UsageError("refusing to replace a file that is not a set of oscar", file.string(),
                   "choose another OUT, or remove the file yourself");
}

/// The set with those of its parts only that the new shape gets.
Set taken(Set set, SetFormat to, std::string part, std::vector<std::string>& lost) {
  const std::vector<std::string> names = part_names(set);
  if (part.empty() && to == SetFormat::kSet) return set;
  const bool chosen = !part.empty();
  if (!chosen) part = set.rotations.contains(kRotationsName) ? kRotationsName : names.back();
  if (std::ranges::find(names, part) == names.end()) throw unknown_choice(part, "--part", names);
  if (part == kCodedName && to != SetFormat::kSet) {
    throw DataError("the coded cache has no rotations, and a set's folder is its only shape", part,
                    "convert to a set, or take another part by --part");
  }
  if (part != kCodedName) set.coded.reset();
  for (const std::string& name : names) {
    if (!chosen && name != part) lost.push_back("the part " + name);
  }
  std::erase_if(set.rotations, [&](const auto& each) { return each.first != part; });
  if (names.size() > 1 && !set.verification.is_null()) {
    lost.emplace_back("verification, which was of all parts");
    set.verification = nullptr;
  }
  return set;
}

void write_folder(const fs::path& out, const Set& set, SetFormat to, const ConvertOptions& options) {
  const RotationPart& part = set.rotations.begin()->second;
  AtomicFolder folder(out, options.replace ? RequireOurs(require_bare_files) : nullptr);
  if (to == SetFormat::kPt) write_rotation_pt_files(folder.path(), part, options.pt_version.value_or(0));
  if (to == SetFormat::kMla) write_rotation_mla(folder.path(), part);
  folder.commit();
}

void write_single(const fs::path& out, const Set& set, SetFormat to, const ConvertOptions& options) {
  if (fs::exists(out) && !options.replace) {
    throw UsageError("the output exists already", out.string(), "choose another OUT, or pass --force to replace it");
  }
  if (fs::is_directory(out)) throw UsageError("the output is a folder", out.string(), "choose another OUT");
  if (fs::is_regular_file(out)) require_set_file(out);
  if (to == SetFormat::kGguf) return write_rotation_gguf(out, set, options.model);
  write_set_file(out, to == SetFormat::kH5 ? SetFileKind::kH5 : SetFileKind::kSafetensors, set);
}

/// What `set` has and `format` has no place for.
std::vector<std::string> losses(const Set& set, SetFormat format, const ConvertOptions& options) {
  if (format == SetFormat::kH5 || format == SetFormat::kSafetensors) return {};
  const auto any = [&](auto has) {
    const auto in_layer = [&](const LayerRotation& layer) { return has(layer.key) || has(layer.value); };
    return std::ranges::any_of(set.rotations,
                               [&](const auto& p) { return std::ranges::any_of(p.second.layers, in_layer); });
  };
  std::vector<std::string> lost;
  const bool plain = format == SetFormat::kGguf || format == SetFormat::kMla;
  const bool bare = format == SetFormat::kPt || format == SetFormat::kMla;
  const bool covariances = format == SetFormat::kSet && options.formats.value_or(RotationFormats()).h5;
  if (plain && any([](const SideTransform& s) { return !s.eigenvalues.empty(); })) lost.emplace_back("eigenvalues");
  if (!covariances && any([](const SideTransform& s) { return s.covariance.count > 0; }))
    lost.emplace_back("covariances");
  if (!bare) return lost;
  const RotationPart& part = set.rotations.begin()->second;
  const auto is_version_3 = [&](SideOfLayer side) {
    return format == SetFormat::kPt && std::max(options.pt_version.value_or(0), lowest_pt_version(part, side)) == 3;
  };
  const bool keys = is_version_3(&LayerRotation::key), values = is_version_3(&LayerRotation::value);
  const Json unknown = member(set.origin, "unknown");
  if (part.has_clip_ratios && !(keys && values)) lost.emplace_back("clip ratios");
  if (!set.manifest.is_null()) {
    lost.emplace_back(keys || values ? "windows, recipe and most of the provenance" : "windows, codec and provenance");
  } else if (!keys && !values && std::count(unknown.begin(), unknown.end(), "codec") == 0) {
    lost.emplace_back("codec and provenance");
  }
  if (!set.verification.is_null()) lost.emplace_back("verification");
  return lost;
}

void check_usage(SetFormat to, const ConvertOptions& options) {
  if ((to == SetFormat::kGguf) != !options.model.empty()) {
    throw UsageError(to == SetFormat::kGguf ? "rotations go into a copy of a model's GGUF, and none is named"
                                            : "only GGUF output takes a model",
                     "--into", to == SetFormat::kGguf ? "name it with --into MODEL.gguf" : "leave it out");
  }
  if (options.pt_version && to != SetFormat::kPt) {
    throw UsageError("only .pt output has versions", "--pt-version", "add --to pt, or leave it out");
  }
  if (options.formats && to != SetFormat::kSet) {
    throw UsageError("only a set's files are chosen", "--format", "add --to set, or leave it out");
  }
}

}  // namespace

std::string_view name_of(SetFormat format) { return std::ranges::find(kFormats, format, &FormatName::format)->name; }

std::vector<std::string> set_format_names() {
  std::vector<std::string> names;
  for (const FormatName& known : kFormats) names.emplace_back(known.name);
  return names;
}

SetFormat set_format_from_name(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &FormatName::name);
  if (found != kFormats.end()) return found->format;
  throw UsageError("unknown format \"" + std::string(name) + "\"", "--to", "see oscar convert --help");
}

Set read_any_set(const fs::path& path, const std::string& pair) {
  const SetFormat format = recognise_set(path);
  if (!pair.empty() && format != SetFormat::kPt) {
    throw UsageError("only folders of bare .pt files have pairs to choose from", "--pair", "leave it out");
  }
  Set set = pair.empty() ? read_as(format, path) : read_foreign_folder(path, pair);
  if (set.origin.is_null() && set.manifest.is_null()) {
    std::vector<fs::path> files{path};
    if (fs::is_directory(path)) {
      files.clear();
      for (const fs::path& file : list_files(path)) files.push_back(path / file);
    }
    set.origin = describe_origin(set.rotations.begin()->second, std::string(name_of(format)), files);
  }
  return set;
}

ConvertResult convert_set(const fs::path& in, const fs::path& out, const ConvertOptions& options) {
  ConvertResult result;
  result.to = format_for(out, options);
  check_usage(result.to, options);
  result.from = recognise_set(in);
  const Set set = taken(read_any_set(in, options.pair), result.to, options.part, result.lost);
  result.parts = part_names(set);
  result.layers = set.coded ? set.coded->layers.size() : set.rotations.begin()->second.layers.size();
  std::ranges::copy(losses(set, result.to, options), std::back_inserter(result.lost));
  throw_if_interrupted();
  switch (result.to) {
    case SetFormat::kSet:
      write_set(out, set, options.formats.value_or(RotationFormats()), options.replace);
      break;
    case SetFormat::kPt:
    case SetFormat::kMla:
      write_folder(out, set, result.to, options);
      break;
    default:
      write_single(out, set, result.to, options);
  }
  return result;
}

}  // namespace oscar
