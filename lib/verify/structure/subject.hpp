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
#include "verify/report/report.hpp"

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
  /// What the files of such a folder say differently (rotation/one_truth.hpp).
  std::vector<std::string> disagreements;
};

/// Throws DataError as read_rotation_set and read_rotation_pt do; check_file_hashes() has compared the hashes.
[[nodiscard]] Subject read_subject(const std::filesystem::path& path);

/// The set with its layers as the sides hold them, so that what is measured is what was checked; without covariances.
/// The sides must have the same layers.
[[nodiscard]] RotationSet set_of(const Subject& subject);

}  // namespace oscar
