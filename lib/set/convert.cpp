// SPDX-License-Identifier: MIT
#include "set/convert.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "base/atomic_file.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "set/manifest.hpp"
#include "set/set_file.hpp"

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

constexpr char kKnown[] = "name a rotation set, a folder of .pt files, or a .h5, .safetensors or .gguf file";

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

RotationPart read_as(SetFormat format, const fs::path& path) {
  switch (format) {
    case SetFormat::kH5:
      return read_set_file(path, SetFileKind::kH5);
    case SetFormat::kSafetensors:
      return read_set_file(path, SetFileKind::kSafetensors);
    case SetFormat::kGguf:
      return read_rotation_gguf(path);
    case SetFormat::kMla:
      return read_rotation_mla(path);
    default:
      return read_rotation_set(path);
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
  return SetFormat::kSet;
}

/// For an AtomicFolder: nothing in it has another name than our bare rotation files have.
void require_bare_files(const fs::path& folder) {
  std::set<fs::path> ours;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool side = name.starts_with("k_rotation") || name.starts_with("v_rotation") || name.starts_with("layer_");
    if (side && name.ends_with(".pt")) ours.insert(name);
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
  throw UsageError("refusing to replace a file that is not a rotation set of oscar", file.string(),
                   "choose another OUT, or remove the file yourself");
}

void write_folder(const fs::path& out, const RotationPart& set, SetFormat to, const ConvertOptions& options) {
  AtomicFolder folder(out, options.replace ? RequireOurs(require_bare_files) : nullptr);
  if (to == SetFormat::kPt) write_rotation_pt_files(folder.path(), set, options.pt_version);
  if (to == SetFormat::kMla) write_rotation_mla(folder.path(), set);
  folder.commit();
}

void write_single(const fs::path& out, const RotationPart& set, SetFormat to, const ConvertOptions& options) {
  if (fs::exists(out) && !options.replace) {
    throw UsageError("the output exists already", out.string(), "choose another OUT, or pass --force to replace it");
  }
  if (fs::is_directory(out)) throw UsageError("the output is a folder", out.string(), "choose another OUT");
  if (fs::is_regular_file(out)) require_set_file(out);
  switch (to) {
    case SetFormat::kH5:
      return write_set_file(out, SetFileKind::kH5, set, true);
    case SetFormat::kSafetensors:
      return write_set_file(out, SetFileKind::kSafetensors, set, true);
    default:
      return write_rotation_gguf(out, set, options.model);
  }
}

/// What `set` has and `format` has no place for.
std::vector<std::string> losses(const RotationPart& set, SetFormat format) {
  if (format == SetFormat::kH5 || format == SetFormat::kSafetensors) return {};
  const auto any = [&](auto member) {
    return std::ranges::any_of(set.layers, [&](const LayerRotation& l) { return member(l.key) || member(l.value); });
  };
  std::vector<std::string> lost;
  const bool plain = format == SetFormat::kGguf || format == SetFormat::kMla;
  const bool bare = format == SetFormat::kPt || format == SetFormat::kMla;
  if (plain && any([](const SideTransform& s) { return !s.eigenvalues.empty(); })) lost.emplace_back("eigenvalues");
  if (format != SetFormat::kSet && any([](const SideTransform& s) { return s.covariance.count > 0; })) {
    lost.emplace_back("covariances");
  }
  if (bare && set.has_clip_ratios) lost.emplace_back("clip ratios");
  if (bare && !set.manifest.is_null()) lost.emplace_back("windows, codec and provenance");
  if (bare && !set.verification.is_null()) lost.emplace_back("verification");
  return lost;
}

void check_usage(SetFormat to, const ConvertOptions& options) {
  if ((to == SetFormat::kGguf) != !options.model.empty()) {
    throw UsageError(to == SetFormat::kGguf ? "rotations go into a copy of a model's GGUF, and none is named"
                                            : "only GGUF output takes a model",
                     "--into", to == SetFormat::kGguf ? "name it with --into MODEL.gguf" : "leave it out");
  }
  if (options.pt_version != 0 && to != SetFormat::kPt) {
    throw UsageError("only .pt output has versions", "--pt-version", "add --to pt, or leave it out");
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

RotationPart read_any_set(const fs::path& path, const std::string& pair) {
  const SetFormat format = recognise_set(path);
  if (!pair.empty() && format != SetFormat::kPt) {
    throw UsageError("only folders of bare .pt files have pairs to choose from", "--pair", "leave it out");
  }
  RotationPart set = pair.empty() ? read_as(format, path) : read_foreign_folder(path, pair);
  if (set.origin.is_null() && set.manifest.is_null()) {
    std::vector<fs::path> files{path};
    if (fs::is_directory(path)) {
      files.clear();
      for (const fs::path& file : list_files(path)) files.push_back(path / file);
    }
    set.origin = describe_origin(set, std::string(name_of(format)), files);
  }
  return set;
}

ConvertResult convert_set(const fs::path& in, const fs::path& out, const ConvertOptions& options) {
  ConvertResult result;
  result.to = format_for(out, options);
  check_usage(result.to, options);
  result.from = recognise_set(in);
  const RotationPart set = read_any_set(in, options.pair);
  result.layers = set.layers.size();
  result.lost = losses(set, result.to);
  if (result.to == SetFormat::kPt && options.pt_version == 3) std::erase(result.lost, "clip ratios");
  if (result.to == SetFormat::kSet) {
    write_rotation_set(out, set, options.formats, options.replace);
    if (!options.formats.h5) {
      const auto more = losses(set, SetFormat::kPt);
      if (std::ranges::find(more, "covariances") != more.end()) result.lost.emplace_back("covariances");
    }
  } else if (result.to == SetFormat::kPt || result.to == SetFormat::kMla) {
    write_folder(out, set, result.to, options);
  } else {
    write_single(out, set, result.to, options);
  }
  return result;
}

}  // namespace oscar
