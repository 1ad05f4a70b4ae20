// SPDX-License-Identifier: MIT
// Rotation sets on disk. Ours is a folder: manifest.json (oscar.rotation_set.v1), k_rotation_<objective>.pt and
// v_rotation_<objective>.pt (format v1, float32, loaded unmodified by SGLang), rotations.h5, optionally
// rotations.safetensors, and serve.env. Foreign ones are bare .pt files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "set/rotation_part.hpp"

namespace oscar {

/// Which files of a set's folder to write.
struct RotationFormats {
  bool pt = true, h5 = true, safetensors = false;
};

/// "pt,h5" -> which. Throws UsageError: an unknown name, or neither pt nor h5.
[[nodiscard]] RotationFormats parse_rotation_formats(const std::string& text);

/// Writes the set as a folder, atomically. replace: an existing folder is swapped out; otherwise it is a UsageError.
void write_rotation_set(const std::filesystem::path& folder, const RotationPart& set, const RotationFormats& formats,
                        bool replace);

/// Whether the caller compares the files of a folder itself with what its manifest says.
enum class ListedFiles { kCheck, kChecked };

/// Reads a folder (hashes and sizes of every listed file, and that all files say the same, are checked:
/// rotation/one_truth.hpp) or a bare folder with one k_rotation*.pt and one v_rotation*.pt. Throws DataError.
[[nodiscard]] RotationPart read_rotation_set(const std::filesystem::path& path,
                                            ListedFiles listed = ListedFiles::kCheck);

/// The two .pt files of a set, under its own names. version: 0 = the lowest that holds the set, else 1, 2 or 3; version
/// 2 repeats one matrix for every head of a model whose heads are known. Throws DataError if that version cannot hold
/// it.
void write_rotation_pt_files(const std::filesystem::path& folder, const RotationPart& set, int version);

/// The set of two bare .pt files, with its origin. Throws DataError.
[[nodiscard]] RotationPart read_foreign_files(const std::filesystem::path& key_file,
                                             const std::filesystem::path& value_file);

/// Reads the pair of this name in a folder of bare files (set/names.hpp). Throws DataError, UsageError.
[[nodiscard]] RotationPart read_foreign_folder(const std::filesystem::path& folder, const std::string& pair);

/// Makes a set of two foreign .pt files, which are copied as they are: with a manifest that says what they tell and
/// what not. source: where they were fetched, or empty.
void write_foreign_set(const std::filesystem::path& folder, const std::filesystem::path& key_file,
                       const std::filesystem::path& value_file, const std::string& source, bool replace);

/// One side of a foreign set: a .pt file of format v1, v2 or v3.
struct RotationFile {
  int version = 0;
  std::string objective;
  /// Version 3, where its calibration says them for every layer.
  bool has_clip_ratios = false;
  /// The one ratio for servers that take no table, with them.
  double clip_scalar = 0;
  ModelIdentity model;                                // what version 3 tells, else nothing
  CalibrationData calibration;                        // likewise
  std::vector<std::pair<int, SideTransform>> layers;  // ascending
};
[[nodiscard]] RotationFile read_rotation_pt(const std::filesystem::path& path);

// Shapes that other programs read and that carry less than a set.

/// blk.<id>.attn_k_rot.weight and blk.<id>.attn_v_rot.weight: F32 [d, d], transposed. A copy of `model` with them, and
/// with the manifest under the key "oscar.manifest". Throws DataError for a set that is not one orthogonal matrix per
/// layer and side, or that does not fit the model.
void write_rotation_gguf(const std::filesystem::path& path, const RotationPart& set, const std::filesystem::path& model);
[[nodiscard]] RotationPart read_rotation_gguf(const std::filesystem::path& path);

/// layer_<id>.pt: a bare matrix, or a dict with rotation, mean, q_rotation. What is cached is one latent row that
/// serves as key and as value, so both sides of a layer are that transform. `path` must exist.
void write_rotation_mla(const std::filesystem::path& folder, const RotationPart& set);
[[nodiscard]] RotationPart read_rotation_mla(const std::filesystem::path& folder);

}  // namespace oscar
