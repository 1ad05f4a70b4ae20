// SPDX-License-Identifier: MIT
// How a server is told to use a set: the environment of OSCAR's SGLang and of OSCAR's branch of llama.cpp, and clip
// tables for the trees that take them. Names of variables were read in FutureMLS-Lab/OSCAR: main at 473ff3f
// (2026-06-01), main at 00b29b8 (October 2026, on SGLang's nightly of 2026-10-02), main at 2911dd3 (later in October),
// and zhongzhu/llamacpp at 4570ea6 (2026-06-01).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "set/manifest.hpp"
#include "set/set.hpp"

namespace oscar {

/// SHA-256 of the files that a server loads, by name: the .pt files of both sides, with mean keys also those; of latent
/// rows one file per layer.
using ServedFiles = std::map<std::string, std::string>;
/// Returns the files of a part that a server reads as the manifest lists them, by their names in the part's folder;
/// without those that it does not.
[[nodiscard]] ServedFiles served_files(const Set& set, const std::string& part);
/// Hashes the files in `folder` that a server loads.
[[nodiscard]] ServedFiles hash_served_files(const std::filesystem::path& folder, const RotationPart& part);

/// The server that serve.env beside a part is for: the first of sglang-v1, sglang and llamacpp that reads it; null:
/// none.
[[nodiscard]] const Reader* server_of_part(const Set& set, const std::string& part);

/// serve.env: SGLANG_* lines for bash, to be read with `source`; paths are relative to the file's own folder. With
/// `files`, sourcing it fails, and sets nothing, if one of them is missing or has another hash. The server must be able
/// to read the part. Holds no text of the set but names from set/names.hpp.
[[nodiscard]] std::string serve_env(const RotationPart& part, const Reader& server, const ServedFiles& files);

struct ServerSettings {
  std::string server, part;
  std::optional<Verdict> verdict;                                // of verify, for this server
  std::vector<std::pair<std::string, std::string>> environment;  // that of serve_env(), with absolute paths
  std::vector<std::string> arguments;  // what goes on the server's command line: groups of options
  std::vector<std::string> notes;      // which tree the variables were read from, and what others do not know
};
/// Returns how a server is told of its part of a set that lies in `folder`. server: sglang, sglang-v1 or llamacpp;
/// empty: the first of these that the set has a part for. Throws UsageError for other readers, and DataError, with the
/// reason, for a set without a part for the server, with one that it cannot use, or without the files that it loads.
[[nodiscard]] ServerSettings server_settings(const Set& set, const std::string& server,
                                             const std::filesystem::path& folder);

/// Returns the tables of clip ratios by file name; none if the ratios are not known. k_clip_per_layer.json,
/// v_clip_per_layer.json: one ratio per layer id from 0 (layers without KV cache get the scalar); k_clip_per_head.json,
/// v_clip_per_head.json: {"<layer>,<head>": ratio}.
[[nodiscard]] std::map<std::string, Json> clip_tables(const RotationPart& part);

[[nodiscard]] bool has_key_means(const RotationPart& part);

/// The mean keys of a set, for trees that read them from a file of their own.
inline constexpr char kKeyMeansName[] = "k_mean.pt";
/// "layer_<id>.pt".
[[nodiscard]] std::string latent_pt_name(int layer_id);
/// "k_rotation_<objective>.pt" and "v_rotation_<objective>.pt".
[[nodiscard]] std::string key_pt_name(const RotationPart& part);
[[nodiscard]] std::string value_pt_name(const RotationPart& part);

}  // namespace oscar
