// SPDX-License-Identifier: MIT
// What is under test: a rotation set of ours, a folder with two foreign .pt files, or one foreign .pt file (one side
// only).
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "coded/coded_set.hpp"
#include "rotation/rotation_set.hpp"
#include "verify/report.hpp"

namespace oscar {

/// Keys or values of all layers.
struct SubjectSide {
  std::string target;                                 // "key", "value", or empty if a lone file does not say
  std::string objective;                              // "qqt_r_h_pbr"
  std::vector<std::pair<int, SideTransform>> layers;  // ascending
};

struct Subject {
  std::filesystem::path path;
  std::vector<SubjectSide> sides;
  /// What the manifest says; its layers are in the sides.
  RotationSet set;
  /// True for a folder with a manifest of ours.
  bool ours = false;
  /// A set of the coded cache, which has no sides; null: of rotations.
  const CodedSet* coded = nullptr;
  /// Of such a folder: what its files say differently (rotation/one_truth.hpp).
  std::vector<std::string> disagreements;
};

/// Throws DataError as read_rotation_set and read_rotation_pt do; check_file_hashes() has compared the hashes.
[[nodiscard]] Subject read_subject(const std::filesystem::path& path);

/// The set with its layers as the sides hold them, so that what is measured is what was checked; without covariances.
/// The sides must have the same layers.
[[nodiscard]] RotationSet set_of(const Subject& subject);

/// Of every layer and side that carries eigenvalues which are not all the same.
[[nodiscard]] std::vector<Spectra> spectra_of(const Subject& subject);
/// Of every layer; empty if the set does not say them, or has one side only.
[[nodiscard]] std::vector<LayerClips> clips_of(const Subject& subject);

/// "qqt" of "qqt_r_h_pbr" and "refined_stretch_qqt_r_h_pbr", and "r_h_pbr" (empty for "hadamard" and "uresidual").
[[nodiscard]] std::string objective_name(const std::string& objective);
[[nodiscard]] std::string composition_name(const std::string& objective);
/// Of objective "hadamard", or a layer of a mixture (--recipe auto) that no data went into.
[[nodiscard]] bool is_hadamard(const SubjectSide& side, const SideTransform& transform);
/// The same, or of a composition that leaves the eigenvectors out.
[[nodiscard]] bool has_constant_rotation(const SubjectSide& side, const SideTransform& transform);
/// Turned by a descent after it was composed: no formula gives it.
[[nodiscard]] bool is_refined(const SubjectSide& side, const SideTransform& transform);
/// Whether an objective is of keys only, or of values only.
[[nodiscard]] bool fits_keys(const std::string& objective);
[[nodiscard]] bool fits_values(const std::string& objective);

}  // namespace oscar
