// SPDX-License-Identifier: MIT
#include "rotation/one_truth.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <set>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "rotation/formats.hpp"
#include "rotation/manifest.hpp"
#include "rotation/manifest_truth.hpp"
#include "rotation/serve_env.hpp"
#include "rotation/set_file.hpp"
#include "rotation/set_h5.hpp"
#include "rotation/side_pt.hpp"

namespace oscar {
namespace {

using Clauses = std::vector<std::string>;

/// Endings that servers, shells and interpreters act upon.
constexpr std::array<std::string_view, 7> kActive{".pt", ".h5", ".safetensors", ".json", ".env", ".sh", ".py"};

/// The files that a set can have, by name, each with the check that compares it with what follows from the set.
using Expected = std::map<std::string, std::function<void(const fs::path& file, Clauses& out)>>;

/// Without comments, which a shell does not act upon and later versions word in another way.
std::string without_comments(const std::string& text) {
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    if (text[begin] != '#') kept += text.substr(begin, end - begin);
    begin = end;
  }
  return kept;
}

/// As sets said it before the matrices of several heads were told from one.
std::string always_absorbing(std::string text) {
  const std::string name = "SGLANG_OSCAR_ABSORB_V_ROTATION=";
  const auto at = text.find(name + "0");
  return at == std::string::npos ? text : text.replace(at, name.size() + 1, name + "1");
}

void compare_env(const fs::path& file, const RotationSet& set, Clauses& out) {
  const std::string text = read_text(file), found = without_comments(text);
  // Sets of version 0.1.0 were written without the lines that check the files.
  for (const ServedFiles& files : {served_files(set), ServedFiles()}) {
    const std::string due = without_comments(serve_env(set, files));
    if (!text.empty() && (found == due || found == always_absorbing(due))) return;
  }
  out.push_back("serve.env is not what follows from the set");
}

void compare_pt(const fs::path& file, const RotationSet& set, SideOfLayer side, Clauses& out) {
  const PtValue found = read_pt(file);
  const PtValue* version = found.find("format_version");
  const auto* number = version == nullptr ? nullptr : version->get_if<std::int64_t>();
  const bool usual = number != nullptr && *number >= 1 && *number <= 3;
  const auto follows_from = [&](const RotationSet& told) {
    return usual && found == side_pt(told, side, static_cast<int>(*number), file.string());
  };
  if (follows_from(set)) return;
  RotationSet without_ratios = set;  // the first sets of version 3 told none here
  without_ratios.has_clip_ratios = false;
  if (follows_from(without_ratios)) return;
  out.push_back(file.filename().string() + " is not what the manifest and the other files say");
}

/// Files of others are kept byte by byte; a manifest was made of what they tell.
void compare_foreign(const fs::path& folder, const RotationSet& set, Clauses& out) {
  const RotationSet told = read_foreign_files(folder / key_pt_name(set), folder / value_pt_name(set));
  Json made = make_manifest(told, Json::array()), found = set.manifest;
  for (const char* name : {"oscar_version", "files", "verification", "origin"}) made.erase(name), found.erase(name);
  if (made != found) out.emplace_back("the manifest is not what the .pt files tell");
}

void compare_safetensors(const fs::path& file, const RotationSet& set, Clauses& out) {
  for (const std::string& clause : safetensors_disagreements(file, set)) {
    out.push_back(file.filename().string() + ": " + clause);
  }
}

Expected expected_of(const RotationSet& set, bool foreign) {
  Expected expected;
  expected["serve.env"] = [&](const fs::path& file, Clauses& out) { compare_env(file, set, out); };
  expected["rotations.h5"] = [&](const fs::path& file, Clauses& out) {
    // The matrices of `set` came from this file, which was tried in another process then.
    std::ranges::copy(h5_disagreements(Hdf5Reader(file, Hdf5Source::kOwn), set, false), std::back_inserter(out));
  };
  expected["rotations.safetensors"] = [&](const fs::path& file, Clauses& out) { compare_safetensors(file, set, out); };
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
void compare_list(const fs::path& folder, const RotationSet& set, const Expected& expected, Clauses& out) {
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

}  // namespace

std::vector<std::string> disagreements(const fs::path& folder, const RotationSet& set) {
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

void require_one_truth(const fs::path& folder, const RotationSet& set) {
  const Clauses found = disagreements(folder, set);
  if (found.empty()) return;
  throw DataError("the files of the set contradict each other: " + found.front() +
                      (found.size() > 1 ? ", and " + std::to_string(found.size() - 1) + " more" : ""),
                  folder.string(), "do not use this set; fetch it again, or ask its maker");
}

void require_sound_set(const fs::path& folder) { (void)read_rotation_set(folder); }

}  // namespace oscar
