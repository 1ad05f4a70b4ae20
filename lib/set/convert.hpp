// SPDX-License-Identifier: MIT
// Any shape of a set that is known, read and rewritten as any other. Matrices stay bit for bit; what is left
// out is named. Non-goal: changing what a set does.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "set/formats.hpp"
#include "set/set.hpp"

namespace oscar {

enum class SetFormat {
  kSet,          // our folder with manifest.json
  kPt,           // k_rotation_*.pt and v_rotation_*.pt, no manifest
  kH5,           // one file, with one part of rotations
  kSafetensors,  // likewise
  kGguf,         // inside a copy of a model's GGUF
  kMla,          // layer_<id>.pt
};
/// "set", "pt", "h5" …
[[nodiscard]] std::string_view name_of(SetFormat format);
[[nodiscard]] std::vector<std::string> set_format_names();
/// Throws UsageError.
[[nodiscard]] SetFormat set_format_from_name(std::string_view name);

/// Reads a set of any format, which its content tells; pair: which one of a folder of bare .pt files, empty: its only
/// one. Files of others are a set with one part, kRotationsName, and their origin. Throws DataError: nothing there, or
/// nothing that holds rotations.
[[nodiscard]] Set read_any_set(const std::filesystem::path& path, const std::string& pair = "");

struct ConvertOptions {
  /// Default: by the output's extension; a name without one is a folder in our format.
  std::optional<SetFormat> to;
  /// The model to copy, for GGUF.
  std::filesystem::path model;
  /// The name of the pair to read, in a folder of bare .pt files with several.
  std::string pair;
  /// The part to take; empty: of a set's folder all, for others "rotations" or else the only part of rotations.
  std::string part;
  /// The version of .pt files: 1, 2 or 3; 0, or none: the lowest that holds the set.
  std::optional<int> pt_version;
  /// The files to write of parts with rotations, for kSet.
  std::optional<RotationFormats> formats;
  bool replace = false;
};

struct ConvertResult {
  SetFormat from = SetFormat::kSet, to = SetFormat::kSet;
  std::vector<std::string> parts;  // that were taken
  std::size_t layers = 0;          // of the first of them
  std::vector<std::string> lost;   // what the set has and the new shape has not
};

/// Writes atomically. Throws DataError if the new shape cannot hold what the set does, UsageError if `out` exists and
/// is not to be replaced, or the options do not fit together.
ConvertResult convert_set(const std::filesystem::path& in, const std::filesystem::path& out,
                          const ConvertOptions& options);

}  // namespace oscar
