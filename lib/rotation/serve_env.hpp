// SPDX-License-Identifier: MIT
// How a server is told to use a set: the environment of OSCAR's SGLang as a text, and clip tables for the trees that
// take them.
#pragma once

#include <filesystem>
#include <string>

#include "rotation/rotation_set.hpp"

namespace oscar {

/// SGLANG_* lines for POSIX shells, to be read with `source`; paths are relative to the file's own folder. For a set
/// that the server cannot use, comments that say why.
[[nodiscard]] std::string serve_env(const RotationSet& set);
/// k_clip_per_layer.json, v_clip_per_layer.json: one ratio per layer id from 0 (layers without KV cache get the
/// scalar); k_clip_per_head.json, v_clip_per_head.json: {"<layer>,<head>": ratio}.
void write_clip_tables(const std::filesystem::path& folder, const RotationSet& set);

/// "k_rotation_<objective>.pt" and "v_rotation_<objective>.pt".
[[nodiscard]] std::string key_pt_name(const RotationSet& set);
[[nodiscard]] std::string value_pt_name(const RotationSet& set);

}  // namespace oscar
