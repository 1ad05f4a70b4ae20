// SPDX-License-Identifier: MIT
// Shapes in which rotations lie in files, of our sets and of others: .pt files of both sides (format versions 1 to 3,
// float32, loaded unmodified by SGLang), tensors in a GGUF file, and a file per layer of MLA models. A set's
// folder is in set/set_folder.hpp.
// Rotations in one file, HDF5 or safetensors, as named tensors layers.<id>.{key,value}.{rotation,
// q_rotation|o_rotation, mean, eigenvalues, covariance, query_covariance}, float32; of HDF5 in groups,
// "/layers/<id>/key/mean". In a set's folder rotations.h5 stands beside manifest.json, which lists its hash. A file
// that stands alone has a manifest of its own (a dataset "manifest" of bytes, the metadata "manifest"), so that nothing
// is lost.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "set/set.hpp"
#include "tensor/pt.hpp"

namespace oscar {

/// Which files to write of each part with rotations.
struct RotationFormats {
  bool pt = true, h5 = true;
};

/// "pt,h5" -> which. Throws UsageError for an unknown name.
[[nodiscard]] RotationFormats parse_rotation_formats(const std::string& text);

/// The two .pt files of rotations, under their own names. version: 0 = the lowest that holds them, else 1, 2 or 3;
/// version 2 repeats one matrix for every head of a model whose heads are known. Throws DataError if that version
/// cannot hold them.
void write_rotation_pt_files(const std::filesystem::path& folder, const RotationPart& part, int version);
/// Fills the layers that `part` lists from its .pt files in a folder. Throws DataError for other layers.
void fill_from_pt(const std::filesystem::path& folder, RotationPart& part);

/// The set of two bare .pt files, with its origin. Throws DataError.
[[nodiscard]] Set read_foreign_files(const std::filesystem::path& key_file, const std::filesystem::path& value_file);
/// Reads the pair of this name in a folder of bare files (set/names.hpp). Throws DataError, UsageError.
[[nodiscard]] Set read_foreign_folder(const std::filesystem::path& folder, const std::string& pair);

/// One side of a foreign set: a .pt file of format v1, v2 or v3.
struct RotationFile {
  int version = 0;
  std::string objective;
  /// Version 3, where its calibration says them for every layer.
  bool has_clip_ratios = false;
  /// The one ratio for servers that take no table, with them.
  double clip_scalar = 0;
  /// Whether version 3 names the codec.
  bool has_codec = false;
  /// Grid, group size and scale dtype, as far as version 3 tells them; clip ratios are those of layers.
  RowCodec codec;
  /// Levels that it tells, if they are not those of `codec`; else 0.
  std::int64_t other_levels = 0;
  ModelIdentity model;                                // what version 3 tells, else nothing
  CalibrationData calibration;                        // likewise
  std::vector<std::pair<int, SideTransform>> layers;  // ascending
};
[[nodiscard]] RotationFile read_rotation_pt(const std::filesystem::path& path);

// What single .pt files hold, float32:
//   {format_version: 1, objective: str, source_grouping: "layer", layers: {int: {layer_id, rotation f32 [d, d],
//   eigenvalues f32 [d]}}}
// Version 2 has rotation [Hkv, d, d] and source_grouping "head". Version 3 adds, where they are not trivial, the read
// side (q_rotation of keys, o_rotation of values, shaped as rotation) and k_mean ([Hkv, d], or [d] for all heads). Ours
// also say in calibration.clip_ratio {layer: f64 [1] or [Hkv]} and clip_scalar (one for all) how rows are clipped, and
// in transform.codec, group_size and scale_dtype how they are quantised.

/// Keys or values: &LayerRotation::key, or &LayerRotation::value.
using SideOfLayer = SideTransform LayerRotation::*;

/// Returns the lowest version that holds the side.
[[nodiscard]] int lowest_pt_version(const RotationPart& set, SideOfLayer side);

/// Returns what a .pt file of this side holds; eigenvalues that are not known are left out. version: 0 = the lowest
/// that holds the side, else 1, 2 or 3. Throws DataError, with `where`, if that cannot hold it.
[[nodiscard]] PtValue side_pt(const RotationPart& set, SideOfLayer side, int version, const std::string& where);

/// {"layers": {id: {"mu": float32 [heads, d]}}}, zeros where a layer has no mean.
[[nodiscard]] PtValue key_means_pt(const RotationPart& set);

/// The bare matrix, which every tree reads; a dict of rotation, q_rotation and mean where the layer has more than it.
[[nodiscard]] PtValue latent_pt(const LayerRotation& layer);

// Shapes that other programs read and that carry less than a set.

/// blk.<id>.attn_k_rot.weight and blk.<id>.attn_v_rot.weight: F32 [d, d], transposed. A copy of `model` with those of
/// the set's only part, and with the manifest under the key "oscar.manifest". Throws DataError for rotations that are
/// not one orthogonal matrix per layer and side, or that do not fit the model.
void write_rotation_gguf(const std::filesystem::path& path, const Set& set, const std::filesystem::path& model);
[[nodiscard]] Set read_rotation_gguf(const std::filesystem::path& path);

/// layer_<id>.pt: a bare matrix, or a dict with rotation, mean, q_rotation. What is cached is one latent row that
/// serves as key and as value, so both sides of a layer are that transform. `path` must exist.
void write_rotation_mla(const std::filesystem::path& folder, const RotationPart& part);
[[nodiscard]] RotationPart read_rotation_mla(const std::filesystem::path& folder);

/// Of each part with rotations, in its folder.
inline constexpr const char* kPartFile = "rotations.h5";

/// Throws DataError if a matrix, a mean or an eigenvalue is not finite as float32, which is how sets are written, or if
/// a rotation has entries beyond 1e6, which none that keeps scores has.
void require_finite(const RotationPart& part, const std::string& where);

void write_part_h5(const std::filesystem::path& path, const RotationPart& part);
/// Fills the matrices of the layers that `part` lists (by layer_id). Throws DataError if a rotation is missing or what
/// belongs to it does not fit.
void fill_from_h5(const std::filesystem::path& path, RotationPart& part);
/// Lists what in the file does not follow from `part`, which was filled from it.
[[nodiscard]] std::vector<std::string> h5_disagreements(const std::filesystem::path& path, const RotationPart& part);

enum class SetFileKind { kH5, kSafetensors };
/// A file that stands alone, of a set's only part.
void write_set_file(const std::filesystem::path& path, SetFileKind kind, const Set& set);
/// Reads a file that stands alone. Throws DataError: no rotations, or what does not fit together.
[[nodiscard]] Set read_set_file(const std::filesystem::path& path, SetFileKind kind);

}  // namespace oscar
